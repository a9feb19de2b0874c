"""Compares the space file with which a search began with the file that resumes the search. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from matex_tf.tune.space_file import Specification


def list_changes(old_spec: Specification, new_spec: Specification) -> tuple[list[str], list[str]]:
    """(changed ranges and choices, other changes): a line for each difference, with the texts of both files.

    Other changes are of the objective, the files, the set of parameters, or a condition. After such a change, the
    results of earlier trials cannot be compared with the results of new trials.
    """
    old_parameters = {parameter.name: parameter for parameter in old_spec.space.parameters}
    new_parameters = {parameter.name: parameter for parameter in new_spec.space.parameters}
    range_changes: list[str] = []
    other_changes: list[str] = []
    if old_spec.objective != new_spec.objective:
        other_changes.append(_describe_change("objective", old_spec.part_texts, new_spec.part_texts))
    for name in {**old_parameters, **new_parameters}:
        old, new = old_parameters.get(name), new_parameters.get(name)
        if old != new:
            has_same_condition = old and new and (old.when, old.otherwise) == (new.when, new.otherwise)
            changes = range_changes if has_same_condition else other_changes
            changes.append(_describe_change(name, old_spec.texts, new_spec.texts))
    if old_spec.files != new_spec.files:
        other_changes.append(_describe_change("files", old_spec.part_texts, new_spec.part_texts))
    return range_changes, other_changes


def _describe_change(name: str, texts_before: Mapping[str, str], texts_after: Mapping[str, str]) -> str:
    return f"{name}: {texts_before.get(name, 'not there')}, now {texts_after.get(name, 'not there')}"
