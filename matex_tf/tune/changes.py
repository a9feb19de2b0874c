"""Compares the space file with which a search began with the one of its resumption. Pure functions."""

from __future__ import annotations

from matex_tf.tune.objective import Objective
from matex_tf.tune.space import Choice, Parameter
from matex_tf.tune.space_file import Specification


def list_changes(before: Specification, after: Specification) -> tuple[list[str], list[str]]:
    """The differences with both values, in two lists: changed ranges and choices, and all other changes.

    After a change of the second kind, results of earlier trials say nothing about new ones.
    """
    old_parameters = {parameter.name: parameter for parameter in before.space.parameters}
    new_parameters = {parameter.name: parameter for parameter in after.space.parameters}
    range_changes: list[str] = []
    other_changes: list[str] = []
    if before.objective != after.objective:
        old_text, new_text = format_objective(before.objective), format_objective(after.objective)
        other_changes.append(f"objective: {old_text}, now {new_text}")
    for name in {**old_parameters, **new_parameters}:
        old, new = old_parameters.get(name), new_parameters.get(name)
        if old != new:
            is_range_change = old is not None and new is not None and old.when == new.when
            old_text, new_text = (format_parameter(parameter) if parameter else "not there" for parameter in (old, new))
            (range_changes if is_range_change else other_changes).append(f"{name}: {old_text}, now {new_text}")
    for field in ("files", "otherwise"):
        old_text, new_text = (str(getattr(parameter, field)) for parameter in (before, after))
        if old_text != new_text:
            other_changes.append(f"{field}: {old_text}, now {new_text}")
    return range_changes, other_changes


def format_objective(objective: Objective) -> str:
    """The objective in the syntax of a space file."""
    direction = "maximize" if objective.maximize else "minimize"
    settings = [f"{name}: {value}" for name, value in (("regex", objective.regex), ("take", objective.take)) if value]
    return "{" + ", ".join([f"{direction}: {objective.name}", *settings]) + "}"


def format_parameter(parameter: Parameter) -> str:
    """A parameter in the syntax of a space file."""
    if isinstance(parameter, Choice):
        text = "flag" if parameter.is_flag else f"[{', '.join(parameter.choices)}]"
    else:
        kind = ("log_int" if parameter.whole else "log") if parameter.log else "int" if parameter.whole else "float"
        text = f"{{{kind}: [{parameter.low:g}, {parameter.high:g}]}}"
    when = ", ".join(f"{name}: [{', '.join(values)}]" for name, values in parameter.when)
    return f"{text} when {{{when}}}" if when else text
