"""What trials that run at once have for themselves: cores and GPUs of this machine, dealt evenly."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matex_tf.tune.trials.trial import Slot
from matex_tf.world import placement


def deal_slots(cores: Sequence[placement.Core], gpus: Sequence[str], parallel: int) -> list[Slot]:
    """So many slots, each with cores and GPUs of its own; where there are fewer of one than slots, it is shared."""
    return [
        Slot(
            tuple(cpu for core in placement.choose_cores(cores, place, parallel) for cpu in core),
            tuple(gpus[place::parallel]) if len(gpus) >= parallel else (),
        )
        for place in range(parallel)
    ]  # fmt: skip


def make_slots(parallel: int) -> list[Slot]:
    """The slots of this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number) for number in range(placement.count_gpus())]
    return deal_slots(placement.list_cores(), gpus if parallel > 1 else [], parallel)
