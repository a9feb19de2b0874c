"""Which variables of optimizers are slots: they have an entry for each entry of a weight."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from matex_tf.servers.variable_swap import find_handle, find_inner

_noted: dict[int, tuple[Any, Any]] = {}


def note_slot(slot: Any, variable: Any) -> None:
    """Note that `slot` is a variable that an optimizer has for each entry of `variable`."""
    whole, of = find_inner(slot), find_inner(variable)
    if whole.shape == of.shape and whole.dtype == of.dtype:
        key = id(whole)
        _noted[key] = weakref.ref(slot, lambda _: _noted.pop(key, None)), weakref.ref(of)


def list_slots(variables: Sequence[Any], handles: Sequence[Any]) -> list[list[Any]]:
    """Of each variable its slots with one of these handles, in their order."""
    numbers = {id(find_inner(variable)): index for index, variable in enumerate(variables)}
    found: list[list[Any]] = [[] for _ in variables]
    slots = {
        id(find_handle(find_inner(slot()))): (slot(), of()) for slot, of in list(_noted.values()) if slot() is not None
    }
    for one in handles:
        slot, of = slots.get(id(one), (None, None))
        if id(of) in numbers:
            found[numbers[id(of)]].append(slot)
    return found


def list_noted() -> list[Any]:
    """The slots of all optimizers that there are."""
    return [slot() for slot, _ in list(_noted.values()) if slot() is not None]
