"""What all ranks agree on before they share a step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from matex_tf.runtime import objects
from matex_tf.world import world


def agree_on_plan(operations: Iterable[Any], why_whole: str, place: str) -> str:
    """Why all ranks compute a step whole, empty where they share it. Collective.

    Args:
        operations: the ops of the step, in their order.
        why_whole: why this rank would compute it whole.
        place: names the step in messages.

    Raises:
        RankError: on every rank, where all would share the step, and have other ops.
    """
    text = " ".join(op.type for op in operations)
    mine = hashlib.blake2b(text.encode()).hexdigest(), why_whole
    everyone = objects.allgather(mine, f"whether ranks can share {place}")
    reasons = [why for _, why in everyone if why]
    if reasons:
        return reasons[0]
    for rank, (digest, _) in enumerate(everyone):
        if digest != everyone[0][0]:
            hosts = world.get_world().hosts
            raise world.RankError(
                f"the ranks' traces of {place} differ: that of rank {rank} ({hosts[rank]}) has other ops "
                f"than that of rank 0 ({hosts[0]}). Every rank must run the same script."
            )
    return ""
