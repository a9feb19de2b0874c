"""The cost model of benchmarks/growth.py: its formulas in cases that can be counted by hand."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("growth", ROOT / "benchmarks" / "growth.py")
growth = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(growth)

BYTES, MESSAGES = growth.Link(0.0, 1.0), growth.Link(1.0, 0.0)


@pytest.fixture(autouse=True)
def only_the_network(monkeypatch):
    monkeypatch.setattr(growth, "ADDITION", 0.0)
    monkeypatch.setattr(growth, "MEMORY", growth.Link(0.0, 0.0))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100, 1024])
def test_bytes_and_messages(ranks):
    assert growth.ring(ranks, 1.0, BYTES) == pytest.approx(2 * (ranks - 1) / ranks)
    assert growth.halving(ranks, 1.0, BYTES) == pytest.approx(2 * (ranks - 1) / ranks)
    assert growth.ring(ranks, 1.0, MESSAGES) == 2 * (ranks - 1)
    doublings = (ranks - 1).bit_length()
    assert growth.halving(ranks, 1.0, MESSAGES) == 2 * growth.recursive_doubling(ranks, 1.0, MESSAGES) == 2 * doublings


def test_only_what_leaves_a_node_is_on_the_network():
    for name in growth.ALGORITHMS:
        assert growth.ALGORITHMS[name](16, 16, 1.0, BYTES) == 0
    # 8 nodes: each adapter sends 2 * 7 / 8, in 16 bits half of that, of 1% of the numbers 7 times 2% of the bytes.
    of_nodes = {name: function(128, 16, 1.0, BYTES) for name, function in growth.ALGORITHMS.items()}
    assert of_nodes == pytest.approx(
        {"mpi": 1.75, "ring": 2 * 127 / 128, "two_level": 1.75, "16 bits": 0.875, "topk:0.01": 0.14}
    )


def test_a_step():
    size = 4 * growth.CHUNK
    assert growth.step_of(1.0, 0.4, size, overlapped=False) == 1.4
    assert growth.step_of(1.0, 0.4, size, overlapped=True) == pytest.approx(1.1)  # the last of four chunks
    assert growth.step_of(1.0, 4.0, size, overlapped=True) == pytest.approx(5 - 2 / 3)  # more than can be hidden


def test_the_table_has_a_line_for_each_number_of_ranks():
    lines = growth.table(25.6e6, 0.25, 16, "infiniband", (16, 128, 1024)).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["16", "128", "1024"]
    assert len(lines[1].split()) - 2 == len(lines[2].split())  # "16 bits" and "at once" are two words each
