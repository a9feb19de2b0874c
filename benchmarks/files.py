"""What files cost a rank that has a view of its own: `matex run -n 2 benchmarks/files.py [--rounds 20]`.

Rank 1 asks and opens each file plainly and right after it through its view; medians, and their ratio. It has written a
file to the folder of which it asks, as most scripts have.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import matex_tf
from matex_tf.files import overlay
from matex_tf.runtime import objects

_FILES = 200


def _stat(functions: tuple) -> Callable[[str], object]:
    def ask(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            functions[0](path)

    return ask


def _open(functions: tuple, mode: str = "r") -> Callable[[str], object]:
    def ask(path: str) -> None:
        with functions[1](path, mode):
            pass

    return ask


def _append(functions: tuple) -> Callable[[str], object]:
    return _open(functions, "a")


def _microseconds(ask: Callable[[str], object], original: Callable[[str], object], pairs: list) -> tuple[float, float]:
    """Medians of what `original` takes of the first path of each pair, and `ask` of the second, right after it."""
    plain, seen = [], []
    for first, second in pairs:
        started = time.perf_counter_ns()
        original(first)
        between = time.perf_counter_ns()
        ask(second)
        plain.append(between - started)
        seen.append(time.perf_counter_ns() - between)
    return statistics.median(plain) / 1e3, statistics.median(seen) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    folder = objects.broadcast(tempfile.mkdtemp() if matex_tf.rank() == 0 else None, "the folder")
    paths = [os.path.join(folder, f"of-rank-0-{number}") for number in range(_FILES)]
    if matex_tf.rank() == 0:
        for path in paths:
            with open(path, "w"):
                pass
    matex_tf.barrier()
    rows = []
    if matex_tf.rank() == 1:
        own = os.path.join(folder, "own")
        _open((os.stat, open), "w")(own)
        other = os.path.dirname(os.__file__)
        place = overlay.get_view().locate_upper(os.path.realpath(own))
        missing = [path + "-no" for path in paths]
        cases = {
            "stat": (_stat, [(path, path) for path in paths]),
            "stat, not there": (_stat, [(path, path) for path in missing]),
            "stat of its own": (_stat, [(place, own)] * _FILES),
            "open": (_open, [(path, path) for path in paths]),
            "open of its own": (_open, [(place, own)] * _FILES),
            "append to its own": (_append, [(place, own)] * _FILES),
            "listdir": (lambda function: function[2], [(other, other)] * _FILES),
        }
        patched = (os.stat, open, os.listdir)
        originals = tuple(function.__wrapped__ for function in patched)
        for name, (use, pairs) in cases.items():
            plain, seen = _microseconds(use(patched), use(originals), pairs * rounds)
            rows.append(f"{name:20}{plain:8.2f} us plain{seen:8.2f} us as rank 1{seen / plain:8.2f} times")
    rows = objects.allgather(rows, "what rank 1 measured")[1]
    if matex_tf.rank() == 0:
        print(*rows, sep="\n")
        for path in paths:
            os.remove(path)
        os.rmdir(folder)


if __name__ == "__main__":
    main()
