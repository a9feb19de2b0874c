"""What sums cost, and benchmarks/growth.py, which is made of it: in cases that can be counted by hand."""

import importlib.util
from pathlib import Path

import pytest

from matex_tf.costs import collectives

ROOT = Path(__file__).resolve().parent.parent.parent
_spec = importlib.util.spec_from_file_location("growth", ROOT / "benchmarks" / "growth.py")
growth = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(growth)

BYTES, MESSAGES, NOTHING = collectives.Link(0.0, 1.0), collectives.Link(1.0, 0.0), collectives.Link(0.0, 0.0)


@pytest.fixture(autouse=True)
def only_the_network(monkeypatch):
    monkeypatch.setattr(collectives, "ADDITION", 0.0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100, 1024])
def test_bytes_and_messages(ranks):
    assert collectives.estimate_ring(ranks, 1.0, BYTES) == pytest.approx(2 * (ranks - 1) / ranks)
    assert collectives.estimate_halving(ranks, 1.0, BYTES) == pytest.approx(2 * (ranks - 1) / ranks)
    assert collectives.estimate_ring(ranks, 1.0, MESSAGES) == 2 * (ranks - 1)
    doublings = (ranks - 1).bit_length()
    assert (
        collectives.estimate_halving(ranks, 1.0, MESSAGES)
        == 2 * collectives.estimate_recursive_doubling(ranks, 1.0, MESSAGES)
        == 2 * doublings
    )


def test_only_what_leaves_a_node_is_on_the_network():
    for name in collectives.ALGORITHMS:
        assert collectives.ALGORITHMS[name](16, 16, 1.0, BYTES, NOTHING) == 0
    # 8 nodes: each adapter sends 2 * 7 / 8, in 16 bits half of that, of 1% of the numbers 7 times 2% of the bytes.
    of_nodes = {name: function(128, 16, 1.0, BYTES, NOTHING) for name, function in collectives.ALGORITHMS.items()}
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


def test_a_measured_link_goes_through_its_points():
    link = collectives.MeasuredLink([100, 200, 400], [1.0, 3.0, 3.5])
    assert [link.estimate_message(size) for size in (10, 100, 150, 200, 300, 400, 800)] == [1, 1, 2, 3, 3.25, 3.5, 4.5]
    assert (
        collectives.MeasuredLink([1, 2, 3], [5.0, 4.0, 6.0]).estimate_message(2) == 5
    )  # never sooner than a smaller one
    with pytest.raises(ValueError, match="increasing"):
        collectives.MeasuredLink([2, 1], [1.0, 1.0])


def test_a_measured_line_costs_what_the_line_costs():
    line = collectives.Link(2.0, 0.5)
    measured = collectives.MeasuredLink([0, 7, 1000], [line.estimate_message(size) for size in (0, 7, 1000)])
    for function in collectives.ALGORITHMS.values():
        for ranks in (1, 2, 7, 64):
            assert function(ranks, 4, 900.0, measured) == pytest.approx(function(ranks, 4, 900.0, line))


def test_memory_of_two_ranks_and_more():
    line = collectives.Link(0.0, 1.0)
    assert [collectives.estimate_shared_memory(ranks, 8.0, line) for ranks in (1, 2, 4)] == [0, 24, 26]
