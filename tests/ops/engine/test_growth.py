"""What a rank of the engine sends and keeps, counted: it grows by the logarithm of ranks, as `matex plan` has it."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from matex_tf.costs import collectives, pieces

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("growth_counts", ROOT / "benchmarks" / "growth_counts.py")
growth_counts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(growth_counts)

MESSAGES, BYTES, NOTHING = collectives.Link(1.0, 0.0), collectives.Link(0.0, 1.0), collectives.Link(0.0, 0.0)
SMALL, LARGE = 4 << 10, 192 << 10
HOSTS = [
    pytest.param(4, 2),
    pytest.param(8, 2, marks=pytest.mark.more),
    pytest.param(16, 8),
    pytest.param(16, 2),
]
IN_A_RING = ("large sum, ring", "gradients to owners, ring", "weights from owners, ring")
BY_HOSTS = ("gradients to owners, two_level", "weights from owners, two_level")


@pytest.fixture(autouse=True)
def additions_take_no_time(monkeypatch):
    monkeypatch.setattr(collectives, "ADDITION", 0.0)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return growth_counts.build_program(tmp_path_factory.mktemp("growth"))


@pytest.fixture(scope="module")
def count(program):
    found = {}

    def get(ranks, per_host):
        if (ranks, per_host) not in found:
            found[ranks, per_host] = growth_counts.count_run(program, ranks, per_host)
        return found[ranks, per_host]

    return get


@pytest.mark.parametrize("ranks, per_host", HOSTS)
def test_closed_forms_of_the_plan_are_what_is_counted(count, ranks, per_host):
    counts, hosts = count(ranks, per_host), ranks // per_host

    def count_bytes(estimate, *where):
        return estimate(ranks, *where, BYTES)

    assert counts["agreement of a layout"]["chain"] == collectives.estimate_rendezvous(ranks, per_host, MESSAGES)
    assert counts["agreement of a layout"]["bytes"] == count_bytes(collectives.estimate_rendezvous, per_host)
    ring = counts["large sum, ring"]
    assert ring["chain"] == collectives.estimate_ring(ranks, LARGE, MESSAGES)
    assert ring["bytes"] == collectives.estimate_ring(ranks, LARGE, BYTES)
    flat = counts["large sum, mpi"]
    assert flat["chain"] == collectives.estimate_halving(ranks, LARGE, MESSAGES)
    assert flat["bytes"] == collectives.estimate_halving(ranks, LARGE, BYTES)
    small = counts["small sum"]
    ways = (collectives.estimate_recursive_doubling, collectives.estimate_halving)
    assert (small["chain"], small["bytes"]) in [(way(ranks, SMALL, MESSAGES), way(ranks, SMALL, BYTES)) for way in ways]
    levels = counts["large sum, two_level"]
    assert levels["bytes of host"] == collectives.estimate_two_levels(ranks, per_host, LARGE, BYTES, NOTHING)
    assert levels["bytes of host"] == ring["bytes"] / (ranks - 1) * ranks / hosts * (hosts - 1)
    for name in ("gradients to owners", "weights from owners"):
        half = counts[f"{name}, two_level"]
        estimate = pieces.estimate_pieces_by_messages
        assert half["bytes of host"] == estimate(ranks, per_host, ranks, LARGE, BYTES, NOTHING)
        assert half["far"] == estimate(ranks, per_host, ranks, LARGE, MESSAGES, NOTHING)
        flat = counts[f"{name}, ring"]
        assert (flat["chain"], flat["bytes"]) == (ranks - 1, (ranks - 1) * LARGE / ranks)
    gathered = counts["gather of 4 KiB of each"]
    rows = collectives.estimate_allgather(ranks, per_host, 8, BYTES, BYTES)
    agreement = collectives.estimate_recursive_doubling(ranks, 4, BYTES)
    data = (ranks - 1) * SMALL
    assert gathered["bytes"] == pytest.approx(
        collectives.estimate_rendezvous(ranks, per_host, BYTES) + rows + agreement + data
    )


@pytest.mark.parametrize("ranks, per_host", HOSTS)
def test_messages_are_as_many_as_a_tree_has_levels(count, ranks, per_host):
    """Six collectives of MPI make a communicator; of ranks at places of their own seven are told."""
    levels = math.log2(ranks)
    most = {"start: communicators": 24, "start: levels of a sum": 12, "mismatch of all places": 26}
    for part, counts in count(ranks, per_host).items():
        if part in IN_A_RING or part.endswith("two_level"):
            continue
        assert counts["chain"] <= most.get(part, 12) * levels, part
        assert counts["messages"] <= most.get(part, 12) * levels, part


def test_what_a_rank_keeps_does_not_grow(count):
    few, many = count(4, 2), count(16, 2)
    for part, counts in many.items():
        assert counts["kept"] <= few[part]["kept"] + 512, part
        # What each rank owns is told by a number of each, and so are the rows of a gather. Of four ranks at places of
        # their own four are told, of more seven.
        table = 12 * 8 * 4 if part in BY_HOSTS or part in IN_A_RING or part.startswith("gather") else 0
        received = LARGE // 8 if part in BY_HOSTS else 0
        assert counts["most"] <= 1.25 * few[part]["most"] + table + received + 2048, part
    assert many["mismatch of a layout"]["bytes"] < 4 * few["mismatch of a layout"]["bytes"]


def test_ranks_of_one_host_meet_and_add_up_in_its_memory(count):
    counts = count(4, 4)
    for part in ("agreement of a layout", "sum in memory", "update of 4 KiB", "end"):
        assert counts[part]["messages"] == 0, part


def test_ranks_go_on_after_a_loss_by_as_many_collectives(program):
    few, many = (growth_counts.count_loss(program, ranks) for ranks in (4, 8))
    assert few["calls"] == many["calls"] and many["kept"] <= few["kept"] + 512
