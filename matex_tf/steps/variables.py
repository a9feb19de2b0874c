"""Facts about variables, and their synchronization: compared between ranks, and sent if they differ."""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf import errors, ops, tags
from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.world import world

_AGREED = "number among the variables on which the ranks have agreed"
_numbers = itertools.count()
_agreed: dict[int, weakref.ref[Any]] = {}
"""The variables on which the ranks have agreed, numbered in the order of the agreements, which all ranks share."""


def find_tf_variable(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable, also if Keras casts its reads; any other variable itself."""
    for name in ("_value", "_variable"):
        wrapped = getattr(variable, name, None)
        variable = wrapped if wrapped is not None and hasattr(wrapped, "assign") else variable
    return variable


def find_name(variable: Any) -> str:
    """The name of a variable in messages and in the layout."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "unnamed")


def find_birth(variable: Any) -> int:
    """A number that grows with each variable that this process creates.

    Ranks identify a variable by its place in this order (rule 12): a script may keep variables in a set, whose order
    differs between ranks. A reference variable of TensorFlow 1 has 0; its name is unique.
    """
    handle = getattr(find_tf_variable(variable), "handle", None)
    return 0 if handle is None else int(handle._id)


def _is_apart(variable: Any) -> bool:
    """Whether the ranks hold pieces of a variable now (`piece_variables`)."""
    is_apart = getattr(variable, "is_apart", None)
    return is_apart is not None and is_apart()


def _select_readable(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables among these, each once, in the order of their creation."""
    seen: set[int] = set()
    found = []
    for variable in variables:
        inner = find_tf_variable(variable)
        is_variable = hasattr(inner, "assign") and hasattr(inner, "dtype")
        if is_variable and id(inner) not in seen and not _is_apart(inner):
            seen.add(id(inner))
            found.append(variable)
    return sorted(found, key=find_birth)


def _read_value(variable: Any) -> np.ndarray:
    inner = find_tf_variable(variable)
    with tf.device(inner.device):  # otherwise a variable in host memory is copied to a GPU and back
        return np.asarray(inner.numpy())


def _digest_values(values: Sequence[np.ndarray]) -> list[tuple[Any, ...]]:
    return [(value.dtype.str, value.shape, ops.hash_content(value)) for value in values]


def find_differing(names: Sequence[str], values: Sequence[np.ndarray], what: str) -> list[int]:
    """The indices of the variables whose values differ between ranks. Collective.

    The list is empty if all ranks have the same values in another order: an optimizer creates its variables in the
    order of the script's list of weights, which may come from a set.

    Raises:
        MismatchError: on every rank, if the ranks have different variables or shapes; it names the first difference.
    """
    digests = _digest_values(values)
    if len(set(objects.allgather(hashlib.blake2b(repr(digests).encode()).digest(), what))) == 1:
        return []
    mine = [(name, *digest) for name, digest in zip(names, digests)]
    everyone = objects.allgather(mine, f"{what}, one by one")
    first = everyone[0]
    if len({tuple(sorted(repr(row[1:]) for row in theirs)) for theirs in everyone}) == 1:
        return []
    for rank, theirs in enumerate(everyone):
        if [row[1:3] for row in theirs] == [row[1:3] for row in first]:
            continue
        hosts = world.get_world().hosts
        for index in range(max(len(first), len(theirs))):
            here = first[index][:3] if index < len(first) else "no such variable"
            there = theirs[index][:3] if index < len(theirs) else "no such variable"
            if here != there and here[1:] != there[1:]:
                raise errors.MismatchError(
                    f"the ranks' models differ. The first variable that differs is number {index} ({what}): rank 0 "
                    f"({hosts[0]}) has {_describe_row(here)}, rank {rank} ({hosts[rank]}) has {_describe_row(there)}. "
                    "Every rank must run the same script and build the same model."
                )
    return [index for index in range(len(first)) if len({theirs[index][3] for theirs in everyone}) > 1]


def _describe_row(row: Any) -> str:
    if isinstance(row, str):
        return row
    name, dtype, shape = row
    return f"'{name}' {np.dtype(dtype).name}{list(shape)}"


def synchronize_variables(
    variables: Iterable[Any],
    what: str = "comparing the variables as training starts",
    trained: Iterable[Any] = (),
) -> list[str]:
    """Give every rank rank 0's values of `variables` that differ. Collective; eager.

    Returns the names of those that differed.

    Raises:
        MismatchError: on every rank, if one of `trained` differs: updates have changed it differently on the ranks.
    """
    chosen = _select_readable(variables)
    names = [find_name(variable) for variable in chosen]
    changed = find_differing(names, [_read_value(variable) for variable in chosen], what)
    drifting = {id(find_tf_variable(variable)) for variable in trained}
    for index in changed:
        if id(find_tf_variable(chosen[index])) in drifting:
            raise errors.MismatchError(
                f"the weights have drifted apart: '{names[index]}' is not the same on all ranks ({what}). Something "
                "in the script changes it by other amounts on each rank, such as weights that one rank alone sets or "
                "loads between steps, or an update from values that differ between ranks."
            )
    for index in changed:
        value = objects.broadcast(_read_value(chosen[index]), f"sending variable number {index} from rank 0")
        find_tf_variable(chosen[index]).assign(value)
    _remember_agreed(chosen)
    return [names[index] for index in changed]


def _remember_agreed(variables: Iterable[Any]) -> None:
    for variable in map(find_tf_variable, variables):
        if not _is_agreed(variable):
            number = next(_numbers)
            tags.set_tag(variable, _AGREED, number)
            _agreed[number] = weakref.ref(variable, lambda _, number=number: _agreed.pop(number, None))  # type: ignore[misc]


def _is_agreed(variable: Any) -> bool:
    return tags.get_tag(find_tf_variable(variable), _AGREED) is not None


def select_new(variables: Iterable[Any]) -> list[Any]:
    """The variables on which the ranks have not agreed yet, each once, in the order of their creation."""
    return _select_readable(variable for variable in variables if not _is_agreed(variable))


def list_agreed() -> list[Any]:
    """The variables that all ranks once agreed on and that still exist on all of them. Collective."""
    agreed = {number: reference() for number, reference in list(_agreed.items())}
    mine = [number for number, variable in agreed.items() if variable is not None]
    everyone = objects.allgather(mine, "which variables still live")
    return [agreed[number] for number in sorted(set(mine).intersection(*everyone))]
