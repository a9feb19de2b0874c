"""Times sums of several sizes over the ranks of this run: `python -m matex_tf -m matex_tf.planner.measurement.link`.

`matex plan` starts this program on one host and on two. Rank 0 prints the measurement as JSON, because its host may
share no files with `matex plan`.
"""

from __future__ import annotations

import ctypes
import json

from matex_tf import errors, ops
from matex_tf.ops import interface
from matex_tf.planner.plan_file import ALL_RANKS, LINK_BYTES, ONE_HOST, TWO_HOSTS, LinkMeasurement
from matex_tf.world import world

PROBES = 15  # sums of each size


def main() -> None:
    """Measure sums between all ranks of this run; rank 0 prints the measurement. Collective."""
    ranks, hosts = world.get_world().size, len(set(world.get_world().nodes))
    scope = ALL_RANKS
    if hosts == 1:
        scope = ONE_HOST
    elif ranks == hosts:  # one rank on each
        scope = TWO_HOSTS
    # (seconds, core seconds) for each size, first on the computing thread, then on the thread of overlapped updates.
    inline_times = [_time_sum(size, overlapped=False) for size in LINK_BYTES]
    asleep_times = [_time_sum(size, overlapped=True) for size in LINK_BYTES]
    _, largest_core_seconds = asleep_times[-1]
    measurement = LinkMeasurement(
        scope=scope, ranks=ranks, hosts=hosts, bytes=LINK_BYTES, seconds=tuple(seconds for seconds, _ in inline_times),
        asleep=tuple(seconds for seconds, _ in asleep_times), cpu_per_byte=largest_core_seconds / LINK_BYTES[-1],
    )  # fmt: skip
    if world.get_world().rank == 0:
        print(json.dumps(vars(measurement)))


def _time_sum(size: int, overlapped: bool) -> tuple[float, float]:
    """(median seconds, mean core seconds) of a sum of `size` bytes over all ranks. Collective.

    With `overlapped`, on the thread of overlapped updates, which sleeps while it waits.
    """
    c_library = ops.get_library().c
    seconds, core_seconds = (ctypes.c_double * PROBES)(), ctypes.c_double()
    for _ in range(2):  # the first round wakes up sleeping threads and links; the second replaces its times
        if c_library.matex_time_sums(overlapped, size, PROBES, seconds, ctypes.byref(core_seconds)):
            raise errors.RankError(interface.get_last_error(c_library))
    return sorted(seconds)[PROBES // 2], core_seconds.value / PROBES


if __name__ == "__main__":
    main()
