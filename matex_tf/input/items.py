"""Checks whether item k of a Python object depends on nothing but k, so that any rank can make it at any time.

Keras makes the first two items of a `PyDataset` before training, to learn their shapes. Here rank 0 makes them in that
order and the other ranks in the reverse order, so an item that depends on earlier items differs between ranks. The
check also fails if making an item draws random numbers or changes the object.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from matex_tf import errors
from matex_tf.input.object_states import State
from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.steps import batches
from matex_tf.world import world

FIRST = (0, 1)
"""The numbers of the items that are compared."""


class Comparison(NamedTuple):
    """The result of the comparison of the items `FIRST`.

    items: these items.
    why: the reason why an item is no function of its number; empty if none was found.
    seconds: the time to make an item, on the fastest rank.
    """

    items: list[Any]
    why: str
    seconds: float


def compare_items(source: Any, name: str) -> Comparison:
    """Compare the items `FIRST` of `source` between all ranks. Collective.

    If an item draws random numbers or sets attributes of `source`, these have the script's own values afterwards.

    Args:
        source: gives items by number.
        name: the name of the source in messages.

    Raises:
        RankError: another rank cannot make an item. If this rank cannot, it raises its own error.
    """
    me = world.get_world()
    items, has_drawn, seconds, failure = {}, False, 0.0, None
    own_attribute = ""  # an attribute that the making of the second item has changed
    try:
        first_state = state_before = State(source)
        for number in FIRST if me.rank == 0 else reversed(FIRST):
            began = time.perf_counter()
            items[number] = source[number]
            seconds = time.perf_counter() - began
            state_after = State(source)
            has_drawn = state_before.is_drawn_from() or has_drawn
            # Only a change by the second item counts: the first may open a file and keep it.
            own_attribute = state_before.find_changed(state_after)
            state_before = state_after
        if (has_drawn or own_attribute) and me.rank > 0 and first_state.can_be_restored():
            # Rank 0 has made the items in the script's order. This brings generators and attributes to the same values.
            first_state.restore()
            items = {number: source[number] for number in FIRST}
    except Exception as error:
        failure = error
    subject = f"items {FIRST[0]} and {FIRST[1]} of {name}"
    item_digests = [batches.digest_tensors(tf.nest.flatten(items[number])) for number in FIRST if not failure]
    digests = [] if failure else [source.num_batches, *item_digests]
    failure_text = f"{type(failure).__name__}: {failure}" if failure else ""
    reports = objects.allgather((digests, has_drawn, own_attribute, seconds, failure_text), f"comparing {subject}")
    if failure:
        raise failure
    all_digests, all_draws, all_attributes, all_seconds, all_texts = zip(*reports)
    for rank, failure_text in enumerate(all_texts):
        if failure_text:
            raise errors.RankError(f"rank {rank} ({me.hosts[rank]}) cannot make {subject}: {failure_text}")
    different_rank = next((rank for rank, digests in enumerate(all_digests) if digests != all_digests[0]), 0)
    changed_attribute = next(filter(None, all_attributes), "")
    why = ""
    if any(all_draws):
        why = "the making of an item draws random numbers"
    elif changed_attribute:
        why = f"the making of an item changes its attribute {changed_attribute!r}"
    elif different_rank:
        why = f"ranks 0 and {different_rank} made different items of the same number"
    return Comparison([items[number] for number in FIRST], why, min(all_seconds))
