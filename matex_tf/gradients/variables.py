"""The same variables on all ranks: compared when training starts, sent where they differ, and watched for drift."""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.gradients import reduction
from matex_tf.runtime import objects
from matex_tf.world import world

_agreed: dict[int, tuple[int, Any]] = {}
"""By the ids of variables: their number in the order in which the ranks agreed on them, and they."""
_numbers = itertools.count()
_left_out: dict[int, Any] = {}


def leave_out(variables: Iterable[Any], is_apart: Callable[[], bool]) -> None:
    """Note that `variables` are not compared while `is_apart()`: each rank has a piece of its own of them then.

    That is a method of what these variables hold, and which is not held here.
    """
    method = weakref.WeakMethod(is_apart)
    for variable in map(reduction.find_tf_variable, variables):
        key = id(variable)
        _left_out[key] = method, weakref.ref(variable, functools.partial(_forget_left_out, key))


def _forget_left_out(key: int, _: object) -> None:
    _left_out.pop(key, None)


def _is_apart(variable: Any) -> bool:
    method, _ = _left_out.get(id(variable), (lambda: None, None))
    is_apart = method()
    return is_apart is not None and is_apart()


def _select_readable(variables: Iterable[Any]) -> list[Any]:
    """Those that are variables of TensorFlow, each once, in the order of their making."""
    seen: set[int] = set()
    found = []
    for variable in variables:
        inner = reduction.find_tf_variable(variable)
        is_one = hasattr(inner, "assign") and hasattr(inner, "dtype")
        if is_one and id(inner) not in seen and not _is_apart(inner):
            seen.add(id(inner))
            found.append(variable)
    return sorted(found, key=reduction.find_birth)


def _read_value(variable: Any) -> np.ndarray:
    import tensorflow as tf

    inner = reduction.find_tf_variable(variable)
    with tf.device(inner.device):  # else one in the host's memory is copied to a GPU and back
        return np.asarray(inner.numpy())


def _digest_values(values: Sequence[np.ndarray]) -> list[tuple[Any, ...]]:
    return [(value.dtype.str, value.shape, ops.hash_content(value)) for value in values]


def find_differing(names: Sequence[str], values: Sequence[np.ndarray], what: str) -> list[int]:
    """The indices of the variables whose values are not the same on all ranks. Collective.

    None where all ranks have the same values in another order: an optimizer makes its variables in the order in which
    the script lists weights, which it may keep in a set.

    Raises:
        RankError: on every rank, if the ranks have other variables or shapes; it names the first that differs.
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
                raise world.RankError(
                    f"the ranks' models differ. The first variable that differs is number {index} ({what}): rank 0 "
                    f"({hosts[0]}) has {_describe_row(here)}, rank {rank} ({hosts[rank]}) has {_describe_row(there)}. "
                    f"Every "
                    "rank must run the same script and build the same model."
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
    """Give every rank rank 0's values of `variables` where they differ. Collective; eager.

    Returns the names of those that differed.

    Raises:
        RankError: on every rank, if one of `trained` differs: updates have changed it by other amounts on each rank.
    """
    chosen = _select_readable(variables)
    names = [reduction.find_name(variable) for variable in chosen]
    changed = find_differing(names, [_read_value(variable) for variable in chosen], what)
    drifting = {id(reduction.find_tf_variable(variable)) for variable in trained}
    for index in changed:
        if id(reduction.find_tf_variable(chosen[index])) in drifting:
            raise world.RankError(
                f"the weights have drifted apart: '{names[index]}' is not the same on all ranks ({what}). Something "
                "in the script changes it by other amounts on each rank, such as weights that one rank alone sets or "
                "loads between steps, or an update from values that differ between ranks."
            )
    for index in changed:
        value = objects.broadcast(_read_value(chosen[index]), f"sending variable number {index} from rank 0")
        reduction.find_tf_variable(chosen[index]).assign(value)
    _remember_agreed(chosen)
    return [names[index] for index in changed]


def _remember_agreed(variables: Iterable[Any]) -> None:
    for variable in variables:
        inner = reduction.find_tf_variable(variable)
        key = id(inner)
        if key not in _agreed:
            _agreed[key] = next(_numbers), weakref.ref(inner, functools.partial(_forget_agreed, key))


def _forget_agreed(key: int, _: object) -> None:
    _agreed.pop(key, None)


def select_new(variables: Iterable[Any]) -> list[Any]:
    """Those variables on which the ranks have not agreed yet, each once, in the order of their making."""
    return _select_readable(one for one in variables if id(reduction.find_tf_variable(one)) not in _agreed)


def list_agreed() -> list[Any]:
    """The variables that all ranks once agreed on and that still live on all of them. Collective."""
    found = {number: reference() for number, reference in list(_agreed.values())}
    mine = [number for number, variable in found.items() if variable is not None]
    everyone = objects.allgather(mine, "which variables still live")
    return [found[number] for number in sorted(set(mine).intersection(*everyone))]
