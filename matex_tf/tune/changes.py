"""Compares the space file with which a search began with another one. Pure functions."""

from __future__ import annotations

from matex_tf.tune.objective import Objective
from matex_tf.tune.space import Choice, Parameter
from matex_tf.tune.space_file import Asked


def list_changes(before: Asked, after: Asked) -> tuple[list[str], list[str]]:
    """The differences with both values, in two lists: changed ranges and choices, and all other changes.

    After a change of the second kind, results of earlier trials say nothing about new ones.
    """
    old = {one.name: one for one in before.space.parameters}
    new = {one.name: one for one in after.space.parameters}
    ranges: list[str] = []
    others: list[str] = []
    if before.objective != after.objective:
        others.append(f"objective: {format_objective(before.objective)}, now {format_objective(after.objective)}")
    for name in {**old, **new}:
        was, now = (format_parameter(one) if one else "not there" for one in (old.get(name), new.get(name)))
        if old.get(name) != new.get(name):
            stays = name in old and name in new and old[name].when == new[name].when
            (ranges if stays else others).append(f"{name}: {was}, now {now}")
    for what in ("files", "otherwise"):
        was, now = (str(getattr(one, what)) for one in (before, after))
        if was != now:
            others.append(f"{what}: {was}, now {now}")
    return ranges, others


def format_objective(objective: Objective) -> str:
    """The objective in the syntax of a space file."""
    way = "maximize" if objective.maximize else "minimize"
    more = [f"{name}: {value}" for name, value in (("regex", objective.regex), ("take", objective.take)) if value]
    return "{" + ", ".join([f"{way}: {objective.name}", *more]) + "}"


def format_parameter(one: Parameter) -> str:
    """A parameter in the syntax of a space file."""
    if isinstance(one, Choice):
        text = "flag" if one.is_flag else f"[{', '.join(one.choices)}]"
    else:
        kind = ("log_int" if one.whole else "log") if one.log else "int" if one.whole else "float"
        text = f"{{{kind}: [{one.low:g}, {one.high:g}]}}"
    when = ", ".join(f"{name}: [{', '.join(values)}]" for name, values in one.when)
    return f"{text} when {{{when}}}" if when else text
