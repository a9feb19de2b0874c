"""Links between ranks that are started; their measurement is what the ranks print last."""

import dataclasses
import json
import shlex

import pytest
from planner_plans import a_plan

from matex_tf.costs import collectives
from matex_tf.launch import command_line, run_options
from matex_tf.launch.planning import kept_links, ranks
from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import Link
from matex_tf.planner import plan_file, report
from matex_tf.planner.predict import SHARED_MEMORY, Links, Predictor, fit_messages

MINE = a_plan().links[0]


def launch(count, target, options, environment):
    """In place of ranks a program that prints a measurement as they would: of so many hosts as are named apart."""
    names = {part.partition(":")[0] for part in options[1].split(",")} if options else {"here"}
    if "nowhere" in names:
        return ["sh", "-c", "echo no such host >&2; exit 1"]
    said = json.dumps({**vars(MINE), "ranks": count, "hosts": len(names - {"alias"})})
    return ["sh", "-c", f'[ -z "$MATEX_TIMELINE" ] && echo {shlex.quote(said)}']


def test_what_is_measured_within_and_between_hosts(capsys, monkeypatch):
    monkeypatch.setattr(ranks.placement, "list_cores", lambda: [(0,), (1,)])
    monkeypatch.setenv("MATEX_TIMELINE", "of-training.json")  # which these ranks do not write
    found = ranks.measure_links(4, ("a", "b", "c"), launch)
    assert [(link.ranks, link.hosts) for link in found] == [(2, 1), (2, 2), (8, 2)]
    assert [link.ranks for link in ranks.measure_links(4, (), launch)] == [2]
    assert ranks.measure_links(1, (), launch) == ()


def test_what_cannot_be_measured_is_said(capsys, monkeypatch):
    monkeypatch.setattr(ranks.placement, "list_cores", lambda: [(0,)])
    assert ranks.measure_links(1, ("a", "nowhere"), launch) == ()
    assert "no such host" in capsys.readouterr().err
    assert ranks.measure_links(1, ("a", "alias"), launch) == ()
    assert "these names are one host's" in capsys.readouterr().err


def test_ranks_are_started_on_the_hosts_that_are_named():
    assert ranks.place_on_hosts(("a", "b"), 4) == ["--host", "a:4,b:4"] and ranks.place_on_hosts((), 4) == []


def test_what_a_run_has_kept_stands_in_for_what_cannot_be_measured(monkeypatch):
    kept = [
        Link({"here": 4}, 5e-6, 1e-10, False, 3e9),
        Link({"a": 1, "b": 1}, 1e-6, 1e-9, True, 3e9),
        Link({"c": 2, "d": 2}, 1e-5, 2e-9, False, 2e9),
        Link({"a": 1, "b": 1}, 2e-5, 1e-9, False, 1e9),
    ]
    monkeypatch.setattr(link_costs, "list_links", lambda: kept)
    (between,) = kept_links.add_kept_links((), (), False)
    assert (between.scope, between.ranks, between.hosts) == (plan_file.ALL_RANKS, 4, 2)
    assert between.seconds == pytest.approx((1e-5, 1e-5 + (2**20 - 2**10) * 2e-9)) and "2 ranks on c" in between.kept
    of_ab = kept_links.add_kept_links((MINE,), ("a", "b"), False)[1]
    assert of_ab.scope == plan_file.TWO_HOSTS and of_ab.seconds[0] == 2e-5, "the newest of a and b was disturbed"
    assert kept_links.add_kept_links((MINE,), ("a", "x"), False) == (MINE,)
    assert kept_links.add_kept_links((MINE,), (), True) == (MINE,), "the network was named"
    now = dataclasses.replace(MINE, scope=plan_file.TWO_HOSTS, hosts=2)
    assert kept_links.add_kept_links((MINE, now), ("a", "b"), False) == (MINE, now)
    # The plan is priced by it, and says so.
    slow, named = (Predictor(a_plan(links=links)) for links in ((MINE, of_ab), (MINE,)))
    assert slow.links.network.estimate_message(1 << 20) == pytest.approx(
        2e-5 + (2**20 - 2**10) * 1e-9 - 2**20 / 5e9, rel=1e-3
    )
    assert slow.predict_step(16).exposed > 1.5 * named.predict_step(16).exposed
    assert (slow.predict_step(4).link_mark, named.predict_step(4).link_mark) == ("extrapolated", "assumed")
    assert "measured by an earlier run: 1 rank on a, 1 rank on b" in report.format_heading(slow.plan, slow)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_what_a_run_on_many_hosts_has_kept_is_priced_by_its_messages(count, monkeypatch):
    """Sums as they are made over a link of 10 us and 1 GB/s: of 1 KiB by doubling, of 1 MiB by halving."""
    link = collectives.Link(1e-5, 1e-9)
    small = collectives.estimate_recursive_doubling(count, 1 << 10, link)
    large = collectives.estimate_flat(count, 1, 1 << 20, link, collectives.MEMORY)
    hosts = {f"h{number}": 1 for number in range(count)}
    kept = Link(hosts, small, (large - small) / ((1 << 20) - (1 << 10)), False, 1e9)
    monkeypatch.setattr(link_costs, "list_links", lambda: [kept])
    (found,) = kept_links.add_kept_links((), (), False)
    links = Links(a_plan(links=(found,), ranks_per_host=1))
    assert links.is_mpi_known(count) and not links.is_mpi_known(count + 1)
    for size in (1 << 20, 16 << 20):
        assert links.network.estimate_message(size) == pytest.approx(link.estimate_message(size), rel=0.12)
    assert links.network.estimate_message(0) == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize("speed", [4e9, 9e9, 50e9])
def test_data_never_travel_for_free_where_sums_are_faster_than_the_assumed_addition(speed, monkeypatch):
    sums = tuple(6e-6 + size / speed for size in plan_file.LINK_BYTES)
    within = dataclasses.replace(MINE, seconds=sums, asleep=sums)
    kept = Link({"a": 1, "b": 1}, 6e-6, 1 / speed, False, 1e9)
    monkeypatch.setattr(link_costs, "list_links", lambda: [kept])
    (between,) = kept_links.add_kept_links((), (), False)
    links = Links(a_plan(links=(within, between)))
    for size in (1 << 20, 16 << 20):
        for message in (links.memory.estimate_message(size), links.network.estimate_message(size)):
            assert size / speed / 3 < message < size / speed + 1e-5
        assert links.estimate_small(2, size, "allgather") > size / speed / 2


def test_a_known_link_is_found_in_its_sums():
    """Sums of two ranks over a link of 10 us and 1 GB/s are one exchange and an addition; of four, two of them."""
    link = collectives.Link(1e-5, 1e-9)
    for count, rounds in ((2, 1), (4, 2)):
        sums = [rounds * (link.estimate_message(size) + size * collectives.ADDITION) for size in plan_file.LINK_BYTES]
        found = fit_messages(plan_file.LINK_BYTES, sums, count)
        for size in (256, 5000, 300_000, 16 << 20, 64 << 20):
            assert found.estimate_message(size) == pytest.approx(link.estimate_message(size), rel=1e-6)
        between = dataclasses.replace(
            MINE, scope=plan_file.ALL_RANKS, ranks=count, hosts=count, asleep=tuple(sums), seconds=tuple(sums)
        )
        priced = Links(a_plan(links=(MINE, between), ranks_per_host=1)).estimate_sum(count, "mpi", 1 << 20)
        assert priced == pytest.approx(collectives.estimate_flat(count, 1, 1 << 20, link, collectives.MEMORY), rel=1e-6)


def test_sums_of_real_ranks_take_longer_with_size_and_are_what_a_plan_says(monkeypatch):
    monkeypatch.setattr(ranks.placement, "list_cores", lambda: [(0,), (1,)])

    def start(count, target, options, environment):
        return command_line.make_command_line(run_options.Run(count, list(target), list(options)))

    (link,) = ranks.measure_links(2, (), start)
    assert (link.scope, link.ranks, link.hosts, link.bytes) == (plan_file.ONE_HOST, 2, 1, plan_file.LINK_BYTES)
    for seconds in (link.seconds, link.asleep):
        assert min(seconds) > 0 and seconds[-1] > max(seconds[:3]), "16 MiB are a thousand times what is before"
    assert link.cpu_per_byte > 0
    plan = a_plan(links=(link,))
    assert Links(plan).estimate_sum(2, SHARED_MEMORY, 64 << 10) == pytest.approx(max(link.seconds[:3]))
    assert Predictor(plan).predict_step(2).link_mark == plan_file.MEASURED
