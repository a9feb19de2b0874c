"""The engine under random load, each value compared with a plain sum; `scripts/sanitize.py` does more of it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("sanitize", ROOT / "scripts" / "sanitize.py")
sanitize = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sanitize)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return sanitize.make(tmp_path_factory.mktemp("stress"), "none")


@pytest.mark.parametrize(
    "ranks, steps, how",
    [
        pytest.param(2, 100, ["mpi"], marks=pytest.mark.more),
        (2, 100, ["auto"]),
        (5, 50, ["auto"]),
        (9, 20, ["auto"]),
        (3, 100, ["ring", "bf16"]),
        (2, 20, ["two_level"]),
        (4, 60, ["two_level", "none", "all", 2]),
        (3, 100, ["two_level", "topk", "hosts", 2]),
        pytest.param(16, 10, ["two_level", "bf16", "hosts", 4], marks=pytest.mark.more),
        pytest.param(16, 5, ["auto", "topk", "all", 5], marks=pytest.mark.more),
        pytest.param(32, 3, ["ring"], marks=pytest.mark.more),
    ],
    ids=str,
)
def test_random_collectives_give_plain_sums(program, ranks, steps, how):
    words = sanitize.command(program, ranks, steps, ranks, *how)
    answer = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0 and f"stress: ok, {steps} steps" in answer.stdout, answer.stdout + answer.stderr


def test_only_libraries_of_mpi_are_left_out():
    names = [
        line.partition(":")[2]
        for file in sorted(sanitize.SUPPRESSIONS.glob("*.supp"))
        for line in file.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert len(names) > 5 and all(
        name.startswith(("libmpi", "libopen-pal", "libpmix", "libprrte", "libevent")) for name in names
    )
