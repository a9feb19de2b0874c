"""Compares the space file with which a search began with the file that resumes the search. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from matex_tf.tune.space_file import Specification


def list_changes(before: Specification, after: Specification) -> tuple[list[str], list[str]]:
    """(changed ranges and choices, other changes): a line for each difference, with the texts of both files.

    Other changes are of the objective, the files, the set of parameters, or a condition. After such a change, the
    results of earlier trials cannot be compared with the results of new trials.
    """
    old_parameters = {parameter.name: parameter for parameter in before.space.parameters}
    new_parameters = {parameter.name: parameter for parameter in after.space.parameters}
    range_changes: list[str] = []
    other_changes: list[str] = []
    if before.objective != after.objective:
        other_changes.append(_describe_change("objective", before.part_texts, after.part_texts))
    for name in {**old_parameters, **new_parameters}:
        old, new = old_parameters.get(name), new_parameters.get(name)
        if old != new:
            has_same_condition = old and new and (old.when, old.otherwise) == (new.when, new.otherwise)
            changes = range_changes if has_same_condition else other_changes
            changes.append(_describe_change(name, before.texts, after.texts))
    if before.files != after.files:
        other_changes.append(_describe_change("files", before.part_texts, after.part_texts))
    return range_changes, other_changes


def _describe_change(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return f"{name}: {before.get(name, 'not there')}, now {after.get(name, 'not there')}"
