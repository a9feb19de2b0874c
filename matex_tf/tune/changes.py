"""Compares the space file with which a search began with the one of its resumption. Pure functions."""

from __future__ import annotations

from matex_tf.tune.objective import Objective
from matex_tf.tune.space import Choice, Parameter
from matex_tf.tune.space_file import RANGES, Specification


def list_changes(before: Specification, after: Specification) -> tuple[list[str], list[str]]:
    """(changed ranges and choices, other changes): a line of text with both values for each difference.

    After a change of the second kind, the results of earlier trials cannot be compared with those of new trials.
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
            old_text, new_text = (format_parameter(parameter) if parameter else "not there" for parameter in (old, new))
            has_same_condition = old and new and (old.when, old.otherwise) == (new.when, new.otherwise)
            changes = range_changes if has_same_condition else other_changes
            changes.append(f"{name}: {old_text}, now {new_text}")
    if before.files != after.files:
        other_changes.append(f"files: {before.files}, now {after.files}")
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
        kind = next(kind for kind, (log, whole) in RANGES.items() if (log, whole) == (parameter.log, parameter.whole))
        text = f"{{{kind}: [{parameter.low:g}, {parameter.high:g}]}}"
    when = ", ".join(f"{name}: [{', '.join(values)}]" for name, values in parameter.when)
    text += f" when {{{when}}}" if when else ""
    return text if parameter.otherwise is None else f"{text}, otherwise {parameter.otherwise}"
