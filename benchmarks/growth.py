"""What a step would cost on more ranks than there are here: a model; with `--counted` what ranks send, counted.

    python benchmarks/growth.py --counted 2 4 8 16 32 64 128 --ranks-per-node 8

starts the engine alone (benchmarks/growth.cc) with so many ranks on this machine, which take themselves for hosts of 8.

    python benchmarks/growth.py [--parameters 25.6e6] [--compute 0.25] [--ranks-per-node 16] [--network infiniband]

It counts messages, bytes and additions (`matex_tf/costs/collectives.py`); `matex plan` does it for a script.

What it assumes: every link is idle and as fast as every other; a node's ranks share one adapter of the network, which
sends and receives at once, but each has 8 GB/s of the memory for itself; ranks are numbered node by node, so that a
ring crosses each adapter once; no rank is later than another; a rank computes as much with any number of ranks (weak
scaling), two thirds of it in the backward pass, which can hide all sums but the last chunk's. Sums go by the fastest of
the algorithms that change no result; efficiency is computation over overlapped step. What real machines add
(imbalance, contention, noise) grows with ranks, too.
"""

from __future__ import annotations

import argparse
import sys
from math import ceil

from matex_tf.costs.collectives import ALGORITHMS, CHUNK, EXACT, NETWORKS, estimate_sum

HIDES = 2 / 3
"""The share of a step's computation that is the backward pass."""


def step_of(compute: float, communication: float, size: float, overlapped: bool) -> float:
    """Seconds of a step: what the backward pass does not hide of the sums comes on top; the last chunk always does."""
    last = communication / max(1, ceil(size / CHUNK))
    hidden = min(communication - last, HIDES * compute) if overlapped else 0.0
    return compute + communication - hidden


def table(parameters: float, compute: float, per_node: int, network: str, ranks: tuple[int, ...]) -> str:
    """The text of the table."""
    size, link = 4 * parameters, NETWORKS[network]
    lines = [
        (
            f"{network}: {link.start_up * 1e6:.0f} us a message, {1e-9 / link.byte:.2f} GB/s a node, of {per_node} "
            f"ranks; {parameters / 1e6:.1f} M parameters, {compute * 1e3:.0f} ms of computation; ms of a sum, and of a "
            "step"
        ),
        "".join(
            (
                f"{'ranks':>6}",
                *(f"{name:>11}" for name in ALGORITHMS),
                f"{'at once':>14}{'overlapped':>12}{'efficiency':>12}",
            )
        ),
    ]
    for count in ranks:
        took = {name: estimate_sum(name, count, per_node, size, link) for name in ALGORITHMS}
        best = min(took[name] for name in EXACT)
        steps = [step_of(compute, best, size, overlapped) for overlapped in (False, True)]
        lines.append(
            f"{count:6}" + "".join(f"{seconds * 1e3:11.1f}" for seconds in took.values())
            + f"{steps[0] * 1e3:14.1f}{steps[1] * 1e3:12.1f}{compute / steps[1]:12.0%}"
        )  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=25.6e6, help="default: those of ResNet-50")
    parser.add_argument("--compute", type=float, default=0.25, metavar="SECONDS", help="of a step on one rank")
    parser.add_argument("--ranks-per-node", type=int, default=16)
    parser.add_argument("--network", choices=NETWORKS, nargs="*", default=list(NETWORKS))
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 128, 1024])
    parser.add_argument("--counted", type=int, nargs="*", default=[], metavar="RANKS", help="count, with so many ranks")
    chosen = parser.parse_args()
    if chosen.counted:
        import growth_counts  # beside this file

        print(growth_counts.tabulate(chosen.counted, chosen.ranks_per_node))
        return 0
    for network in chosen.network:
        print(table(chosen.parameters, chosen.compute, chosen.ranks_per_node, network, tuple(chosen.ranks)), "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
