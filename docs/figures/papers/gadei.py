"""The bandwidth between learners and a parameter server: GaDei (Zhang, Wang, Joshi et al., ICDM 2017), section 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from matex_tf.planner.papers.domain import check_positive

LEARNED_BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of the mini-batches of Table 4."""
_NONE = float("nan")  # not measured


@dataclass(frozen=True)
class Workload:
    """The paper's numbers for a network and its data (Tables 2, 3, 4 and 7)."""

    rows: float
    """Rows of an epoch."""
    megabytes: float
    """Size of the model."""
    seconds: tuple[float, ...]
    """Of an epoch, with each of `LEARNED_BATCH`."""
    required: tuple[float, ...]
    """GB/s that a second learner needs, with each of `LEARNED_BATCH`."""
    batch: int
    """Rows of the mini-batch in training."""
    used: tuple[float, float, float]
    """GB/s used by 2, 3 and 4 learners."""


WORKLOADS: Mapping[str, Workload] = {
    "Joule": Workload(
        rows=2.46e3, megabytes=7.69, batch=2, used=(18.56, 27.25, 36.48),
        seconds=(5.61, 3.22, 1.77, 1.00, 0.75, 0.72, 0.80, 1.00),
        required=(7.00, 6.10, 5.54, 4.89, 3.27, 1.69, 0.76, 0.31),
    ),
    "Watt": Workload(
        rows=7e3, megabytes=20.72, batch=2, used=(26.93, 44.33, 55.07),
        seconds=(25.22, 14.11, 7.46, 4.06, 2.79, 2.38, 2.37, 2.77),
        required=(11.50, 10.28, 9.72, 8.93, 6.49, 3.82, 1.91, 0.82),
    ),
    "Age": Workload(
        rows=68.48e3, megabytes=72.86, batch=4, used=(32.94, 36.76, 46.42),
        seconds=(574.80, 309.51, 169.99, 104.39, 77.79, 69.52, 77.14, 100.22),
        required=(17.36, 16.12, 14.68, 11.95, 8.02, 4.49, 2.02, 0.78),
    ),
    "Yelp": Workload(
        rows=500e3, megabytes=98.60, batch=32, used=(19.93, 22.64, 39.34),
        seconds=(4376.12, 2367.04, 1299.42, 802.04, 571.10, 451.61, 403.69, 402.97),
        required=(22.53, 20.83, 18.97, 15.37, 10.79, 6.82, 3.82, 1.91),
    ),
    "CIFAR": Workload(
        rows=50e3, megabytes=59.97, batch=128, used=(0.78, 1.21, 1.45),
        seconds=(_NONE, 792.45, 502.63, 356.46, 290.95, 261.23, 245.68, 234.38),
        required=(_NONE, 3.78, 2.98, 2.10, 1.29, 0.72, 0.38, 0.20),
    ),
    "ImageNet": Workload(
        rows=1280e3, megabytes=244.48, batch=256, used=(3.98, 6.25, 8.02),
        seconds=(_NONE, 26957.54, 15596.41, 9499.38, 7294.30, 5769.76, 5014.85, 4784.22),
        required=(_NONE, 11.61, 10.03, 8.24, 5.36, 3.39, 1.95, 1.02),
    ),
}  # fmt: skip
"""Tables 4 and 7."""

EPOCHS = {"Joule": 200, "Watt": 200, "Age": 200, "Yelp": 200, "CIFAR": 100, "ImageNet": 40}
HOURS = {"Joule": 0.18, "Watt": 0.78, "Age": 9.44, "Yelp": 24.99, "CIFAR": 6.53, "ImageNet": 52.56}
"""Table 6: the epochs of one learner, and their hours."""


SYSTEMS = ("GaDei", "mpiT", "DPT")
SMALLEST: Mapping[str, tuple[int, int, int]] = {
    "Joule": (1, 16, 32),
    "Watt": (1, 16, 64),
    "Age": (1, 32, 32),
    "Yelp": (16, 64, 128),
    "CIFAR": (2, 2, 8),
    "ImageNet": (2, 8, 8),
}
"""Table 8: rows of the smallest mini-batch with which each of `SYSTEMS` still gains from more learners."""


@dataclass(frozen=True)
class Interval:
    """A row of Table 1, in percent: two values, for communication after each batch and after every eighth batch."""

    accuracy: tuple[float, float]
    utilization: tuple[float, float]


EIGHTH = 8
INTERVALS: Mapping[str, Interval] = {
    "Joule": Interval((57.70, 39.80), (7.90, 35.80)),
    "Watt": Interval((57.80, 55.10), (4.90, 29.40)),
    "Age": Interval((74.10, 63.60), (4.00, 24.90)),
    "MR": Interval((77.20, 50.00), (5.50, 33.70)),
    "Yelp": Interval((56.90, 20.00), (8.80, 42.90)),
}
"""Table 1: mpiT, 12 GPUs."""


def utilization_by_interval(alone: float, interval: int) -> float:
    """The fraction of time in which the GPU computes, if it communicates after every `interval` batches.

    Our model: a batch computes for `alone`, and waits for 1 - `alone`, if it communicates after each batch. With an
    interval the computation does not change, and the waiting time occurs once in `interval` batches.
    """
    check_positive("utilization_by_interval", alone=alone, interval=interval)
    return 1 / (1 + (1 / alone - 1) / interval)


def bandwidth_bracket(workload: Workload, smallest: int) -> tuple[float, float]:
    """(at least, below) GB/s: the bandwidth of a system, if `smallest` is the smallest batch with a gain (Table 4).

    Our model: a system gains exactly if it has the bandwidth that a batch requires. So it has that of the batch
    `smallest`, and less than that of the next smaller batch.
    """
    index = LEARNED_BATCH.index(smallest)
    upper = workload.required[index - 1] if index else _NONE
    return workload.required[index], math.inf if math.isnan(upper) else upper


def required_bandwidth(model: float, rows: float, batch: float, epoch: float) -> float:
    """Bytes a second that a second learner needs to gain: 2 model sizes over the time of a batch (section 3).

    Args:
        model: bytes. rows: of an epoch. batch: rows of a mini-batch. epoch: seconds of an epoch with one learner.
    """
    check_positive("required_bandwidth", model=model, rows=rows, batch=batch, epoch=epoch)
    return 2 * model * rows / (batch * epoch)


def speedup_of(used: float, alone: float) -> float:
    """Speedup of learners that use `used` bytes a second, over one learner that needs `alone` bytes a second."""
    check_positive("speedup_of", used=used, alone=alone)
    return used / alone


ROUNDING = 0.005
"""Rounding error of Table 4 in GB/s: it has two decimals."""


def worst_required(workload: Workload, rounding: float = 0.0) -> float:
    """The largest relative error of `required_bandwidth` against Table 4, after subtracting the `rounding` error."""
    relative_errors = []
    for batch, seconds, required in zip(LEARNED_BATCH, workload.seconds, workload.required):
        if not math.isnan(required):
            calculated = required_bandwidth(workload.megabytes * 1e6, workload.rows, batch, seconds) / 1e9
            relative_errors.append(max(abs(calculated - required) - rounding, 0.0) / required)
    return max(relative_errors)


def needed_alone(name: str) -> float:
    """GB/s that one learner needs at the batch of Tables 2 and 3: from Table 4, or else from Table 6."""
    workload = WORKLOADS[name]
    if workload.batch in LEARNED_BATCH:
        return workload.required[LEARNED_BATCH.index(workload.batch)]
    seconds = HOURS[name] * 3600 / EPOCHS[name]
    return required_bandwidth(workload.megabytes * 1e6, workload.rows, workload.batch, seconds) / 1e9


def hours(name: str) -> float:
    """Hours of Table 6 by Table 4: epochs times the seconds of an epoch, at the batch of Tables 2 and 3.

    Raises:
        ValueError: Table 4 does not have that batch.
    """
    workload = WORKLOADS[name]
    if workload.batch not in LEARNED_BATCH:
        raise ValueError(f"hours: Table 4 has no batch of {workload.batch} rows, as {name} has")
    return EPOCHS[name] * workload.seconds[LEARNED_BATCH.index(workload.batch)] / 3600
