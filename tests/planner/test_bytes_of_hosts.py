"""No prediction is below what the bytes take that a host must receive, and send, by its one adapter."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import ceil

import pytest
from planner_plans import a_plan

from matex_tf.costs import collectives, pieces
from matex_tf.costs.collectives import Link, MeasuredLink
from matex_tf.planner.plan_file import ASSUMED, Collective, Gradient, Update
from matex_tf.planner.predict import Predictor
from matex_tf.planner.simulator.run import simulate_plan
from matex_tf.planner.simulator.what_if import read_changes
from matex_tf.planner.strategies import estimate_strategies
from matex_tf.servers.pieces.partition import choose_owners

BYTE = 8 / 10e9
RANKS, PER_HOST, SIZES = (1, 2, 3, 4, 7, 16, 100, 1024), (1, 2, 3, 16), (1, 700, 80_000, 5e6, 3e8)
LINES = [Link(start, BYTE) for start in (0.0, 3e-5)]
LINKS = [
    *LINES,
    *(MeasuredLink([0, 1e3, 1e6], [one.estimate_message(size) for size in (0, 1e3, 1e6)]) for one in LINES),
]


def count_ranks(ranks, per_host):
    """Of each host its ranks, which are numbered host by host."""
    return list(Counter(rank // per_host for rank in range(ranks)).values())


def sums(hosts, size, share=1.0):
    """What each of so many hosts sends and receives at least (Patarasuk and Yuan 2009, theorem 1)."""
    return 2 * (len(hosts) - 1) / len(hosts) * size * share


def gathered(hosts, size):
    return max(sum(hosts) - one for one in hosts) * size


def sent_to_all(hosts, size):
    return size * (len(hosts) > 1)


NEEDED = {
    **dict.fromkeys(map(collectives.ALGORITHMS.get, collectives.EXACT), sums),
    collectives.estimate_sum_of_mpi: sums,
    collectives.estimate_16_bits: lambda hosts, size: sums(hosts, size, 0.5),
    collectives.estimate_topk: lambda hosts, size: (len(hosts) - 1) * 0.02 * size,
    collectives.estimate_allgather: gathered,
    collectives.estimate_broadcast: sent_to_all,
}


@pytest.mark.parametrize("estimate", NEEDED, ids=lambda one: one.__name__)
def test_a_collective_takes_what_its_bytes_take_at_every_host(estimate):
    for ranks, per_host, size, link in product(RANKS, PER_HOST, SIZES, LINKS):
        least = NEEDED[estimate](count_ranks(ranks, per_host), size) * BYTE
        took = estimate(ranks, per_host, size, link)
        assert took >= least * (1 - 1e-9), (ranks, per_host, size, link)
        assert estimate(ranks, per_host, 2 * size, link) >= took


@pytest.mark.parametrize("estimate", NEEDED, ids=lambda one: one.__name__)
def test_more_than_twice_the_bytes_that_must_travel_are_not_priced(estimate):
    """Of large tensors: else no prediction would be below what the bytes take either."""
    for ranks, per_host in product((2, 4, 16, 64, 1024), (1, 4, 16)):
        hosts = count_ranks(ranks, per_host)
        took = estimate(ranks, per_host, 1e9, LINKS[0], Link(0.0, 0.0)) - 3e9 * collectives.ADDITION
        assert took <= 2 * NEEDED[estimate](hosts, 1e9) * BYTE, (ranks, per_host)


def test_pieces_take_what_their_bytes_take_at_every_host():
    """Gradients to their owners: a host sends what it does not own. New weights from them: it receives that."""
    for ranks, per_host, size, link in product(RANKS, PER_HOST, SIZES, LINKS):
        nodes = [rank // per_host for rank in range(ranks)]
        for owners in sorted({1, 2, 3, 5, ceil(ranks / per_host), ranks // 2, ranks} - {0}):
            if owners > ranks or len(set(nodes)) == 1:
                continue
            own = Counter(nodes[rank] for rank in choose_owners(nodes, owners))
            least = max(size - size * own[node] / owners for node in set(nodes)) * BYTE
            took = pieces.estimate_pieces_by_messages(ranks, per_host, owners, size, link, collectives.MEMORY)
            assert took >= least * (1 - 1e-9), (ranks, per_host, owners, size)


def a_gathering_plan(kind="allgather", scaling="strong", of_row=16_000, **changed):
    """Each row gives 16 kB to a collective, over 10 Gbit/s."""
    rows = {1: 64, 4: 64, 16: 64} if scaling == "weak" else {one.ranks: one.rows for one in a_plan().sizes}
    sizes = tuple(replace(one, rows=rows[one.ranks], bytes=(of_row * rows[one.ranks],)) for one in a_plan().sizes)
    made = {"sizes": sizes, "collectives": (Collective(kind, "rows", sizes[1].bytes[0]),), "scaling": scaling}
    return a_plan(**{**made, "network": f"0:{1 / BYTE}", **changed})


@pytest.mark.parametrize("scaling", ["strong", "weak"])
@pytest.mark.parametrize("kind", ["collective", "allgather", "broadcast", "message"])
def test_a_step_takes_what_the_bytes_of_its_collectives_take_at_every_host(kind, scaling):
    plan = a_gathering_plan(kind, scaling)
    needed = {"collective": sums, "broadcast": sent_to_all}.get(kind, gathered)
    for ranks, per_host in product((1, 2, 3, 8, 16, 64, 1024), (1, 2, 16)):
        here = replace(plan, ranks_per_host=per_host)
        mine = 16_000 * 64 / (1 if scaling == "weak" else ranks)  # on the mean: some have a row less, or none
        least = needed(count_ranks(ranks, per_host), mine) * BYTE
        step = Predictor(here).predict_step(ranks)
        assert step.small >= least * (1 - 1e-9), (ranks, per_host)
        if ranks <= 16:
            simulated = simulate_plan(here, ranks, read_changes(["noise=0", "overlap=off"]), steps=2)
            assert simulated.exposed >= least * (1 - 1e-9)


def test_a_megabyte_of_each_of_1024_ranks_is_a_gigabyte_at_each_of_them():
    plan = a_gathering_plan(scaling="weak", of_row=2**20 / 64, ranks_per_host=1)
    assert 1023 * 2**20 * BYTE <= Predictor(plan).predict_step(1024).small < 1.1 * 1023 * 2**20 * BYTE


def test_rows_that_are_gathered_are_as_many_as_a_slice_has():
    """On any number of ranks the rows of the same batch travel, also where one rank alone has other collectives."""
    plan = a_gathering_plan(ranks_per_host=1, links=())
    told = tuple(replace(one, bytes=() if one.ranks == 1 else one.bytes) for one in plan.sizes)
    for sizes in (plan.sizes, told, told[:2]):
        for ranks in (2, 8, 32, 64, 1024):
            small = Predictor(replace(plan, sizes=sizes)).predict_step(ranks).small
            needed = (ranks - 1) / ranks * 64 * 16_000 * BYTE
            assert small >= needed * (1 - 1e-9) and (small < 2 * needed or len(sizes) == 2)
    only = replace(plan, sizes=told[:2], rows=128)  # 16 rows were measured, and 32 are asked about
    assert Predictor(only).predict_step(4).small >= 3 * 32 * 16_000 * BYTE


@pytest.mark.parametrize("per_host", [1, 2])
def test_strategies_take_what_their_bytes_take_at_every_host(per_host):
    size = 40_000_000.0
    sizes = tuple(replace(one, at=(), bytes=(), ready=(one.typical,), update=1e-3) for one in a_plan().sizes)
    plan = a_plan(
        overlaps=False, links=(), network=f"0:{1 / BYTE}", gradients=(Gradient("a", int(size)),), collectives=(),
        sizes=sizes, ranks_per_host=per_host, update=Update(int(size), int(size), int(size), 8),
    )  # fmt: skip
    for ranks in (4, 6, 64):
        nodes = [rank // per_host for rank in range(ranks)]
        least = sums(count_ranks(ranks, per_host), size) * BYTE
        made, _ = estimate_strategies(Predictor(plan), ranks, "servers:3")
        for one in made:
            if one.strategy.startswith("local:"):
                assert one.step.exposed * int(one.strategy[6:]) >= least * (1 - 1e-9)
                continue
            owners = {"allreduce": ranks, "sharded": ranks}.get(one.strategy) or int(one.strategy[8:])
            own = Counter(nodes[rank] for rank in choose_owners(nodes, owners))
            way = max(size - size * own[node] / owners for node in set(nodes)) * BYTE
            assert one.step.exposed >= (least if one.strategy == "allreduce" else 2 * way) * (1 - 1e-9), one.strategy
            assert one.step.link_mark == ASSUMED
