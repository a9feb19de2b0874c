"""Times sums of several sizes over the ranks of this run: `python -m matex_tf -m matex_tf.planner.measurement.link`.

`matex plan` starts it on one host and on two. Rank 0 prints the measurement, because it may run on a host that shares
no files with `matex plan`.
"""

from __future__ import annotations

import ctypes
import json

from matex_tf import errors, ops
from matex_tf.ops import interface
from matex_tf.planner.plan_file import ALL_RANKS, LINK_BYTES, ONE_HOST, TWO_HOSTS, LinkMeasurement
from matex_tf.world import world

PROBES = 15  # sums of each size


def measure_link() -> LinkMeasurement:
    """Measure sums between all ranks of this run. Collective."""
    me = world.get_world()
    hosts = len(set(me.nodes))
    inline = [_time_sum(size, overlapped=False)[0] for size in LINK_BYTES]
    asleep = [_time_sum(size, overlapped=True) for size in LINK_BYTES]  # on a thread that sleeps while it waits
    scope = ONE_HOST if hosts == 1 else TWO_HOSTS if me.size == hosts else ALL_RANKS
    return LinkMeasurement(
        scope, me.size, hosts, LINK_BYTES, tuple(inline),
        tuple(seconds for seconds, _ in asleep), asleep[-1][1] / LINK_BYTES[-1],
    )  # fmt: skip


def _time_sum(size: int, overlapped: bool) -> tuple[float, float]:
    """The median seconds of a sum of `size` bytes, and its core seconds."""
    c = ops.get_library().c
    seconds, cpu = (ctypes.c_double * PROBES)(), ctypes.c_double()
    for _ in range(2):  # the first round wakes up sleeping threads and links
        if c.matex_time_sums(overlapped, size, PROBES, seconds, ctypes.byref(cpu)):
            raise errors.RankError(interface.get_last_error(c))
    return sorted(seconds)[PROBES // 2], cpu.value / PROBES


def main() -> None:
    measurement = measure_link()
    if world.get_world().rank == 0:
        print(json.dumps(vars(measurement)))


if __name__ == "__main__":
    main()
