"""Which sizes are measured, in which order, and what comes of those that cannot be: no script is started."""

import dataclasses
from math import ceil
from types import SimpleNamespace

import click
import pytest
from planner_plans import a_plan

from matex_tf import memory
from matex_tf.launch.planning import ranks as started
from matex_tf.launch.planning import requests, run, sizes
from matex_tf.observe import link_costs
from matex_tf.planner import plan_file
from matex_tf.planner.compute import Compute
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.measurement.steps import Steps
from matex_tf.world import mpirun_options

MIB = 1 << 20
ROWS = 1024


@pytest.fixture
def host(monkeypatch):
    """Two cores, 16 GiB, and in place of processes 100 MiB of TensorFlow, 50 MiB of weights and 1 MiB a row."""
    made = SimpleNamespace(free=16 << 30, started=[], failing={}, constant=50 * MIB, row=MIB, unlike=(), more=())

    def measure(script, ranks, copies, folder, steps, scaling, limits):
        made.started.append((ranks, copies))
        if error := made.failing.get((ranks, copies)) or made.failing.get(ranks):
            raise error
        rows = ceil(ROWS / ranks)
        peak = 100 * MIB + made.constant + made.row * rows
        assert copies * peak <= made.free, "started without a look at memory"
        took = 1e-3 + 1e-5 * copies * rows
        size = plan_file.Size(ranks, copies, rows, (took,) * 9, (took,), (), 100 * MIB, peak)
        named = plan_file.Gradient("a" if ranks not in made.unlike else "b", 4)
        # Of each size the collectives have names with other shapes.
        kinds = ("message",) * (ranks in made.more) + ("allgather", "collective")
        others = tuple(plan_file.Collective(kind, f"{kind} of [{rows}]", rows) for kind in kinds)
        size = dataclasses.replace(size, at=(0.0,) * len(others), bytes=(rows,) * len(others))
        steps = Steps((took,), ROWS, (named,), (took,), others, size.at, size.bytes)
        return phantoms.Measurement(size, steps, True, plan_file.Update(not_async="no"))

    monkeypatch.setattr(phantoms, "measure_copies", measure)
    monkeypatch.setattr(memory, "measure_free", lambda ranks=1: made.free // ranks)
    monkeypatch.setattr(link_costs, "list_links", list)
    for module in (requests, run, started):
        monkeypatch.setattr(module.placement, "list_cores", lambda: [(0,), (1,)])
    return made


def ask(ranks, per_host=2):
    return requests.PlanRequest(list(ranks), per_host, "ethernet25", "strong", 0.7, 0.0, 1, 0, 0.0, 25, "", "")


def no_mpirun(*_):
    raise click.UsageError("there is no mpirun. Install one")


def measure(*ranks, per_host=2):
    return run.measure_plan(ask(ranks, per_host), ["train.py"], no_mpirun)


def measured(plan):
    return [(size.ranks, size.copies) for size in plan.sizes]


def test_the_smallest_slice_is_measured_first_and_before_all_others_once_alone(host):
    plan = measure(*(2**i for i in range(11)))
    assert host.started == [(1024, 1), (1024, 2), (32, 2), (2, 2), (1, 1)]
    assert measured(plan) == sorted(host.started)


def test_without_mpi_a_plan_says_what_is_assumed(host, capsys):
    plan = measure(1, 2, 4)
    assert plan.links == () and any("8 GB/s" in one for one in plan.assumptions)
    said = capsys.readouterr().err
    assert "8 GB/s a rank are assumed: there is no mpirun. Install one" in said


@pytest.mark.parametrize("failing", [(32,), (1,), (2, 32), ((1024, 1),), (1024,)])
def test_what_cannot_be_measured_is_named_and_the_others_are_kept(host, capsys, failing):
    why = "as rank 0 the script cannot be measured: it failed with exit code 1; it had trained\nits own words"
    host.failing = {one: phantoms.NotMeasured(why, updates=9) for one in failing}
    plan = measure(1, 2, 32, 1024)
    ranks = {one if isinstance(one, int) else one[0] for one in failing}
    left = {1, 2, 32, 1024} - ranks
    assert left <= {ranks for ranks, _ in measured(plan)}
    for one in ranks:
        assert any(f"rank 0 of {one} is extrapolated" in text and "exit code 1" in text for text in plan.assumptions)
        assert not any("its own words" in text for text in plan.assumptions)
    assert "its own words" in capsys.readouterr().err
    if 1 not in left:
        found = Compute(plan)
        # By the cores that it has, as one copy of the smallest slice had them; of 1024 rows in place of 1.
        assert found.estimate_seconds(1) == pytest.approx((1e-3 + 2e-5 * 1024) * (1e-3 + 1e-5) / (1e-3 + 2e-5))
        assert found.find_mark(1) == plan_file.EXTRAPOLATED


def test_a_script_that_never_trains_is_not_tried_again(host):
    host.failing = {1024: phantoms.NotMeasured("its own error")}
    with pytest.raises(phantoms.NotMeasured, match="^its own error"):
        measure(1, 2, 1024)
    assert host.started == [(1024, 1)]


def test_a_script_that_ends_too_soon_is_tried_again_only_where_more_ranks_make_fewer_steps(host):
    host.failing = {1024: phantoms.NotMeasured("it ended before it had trained enough", updates=3, is_short=True)}
    with pytest.raises(phantoms.NotMeasured, match="^it ended before"):
        measure(1, 2, 1024)
    assert host.started == [(1024, 1)]
    asked = dataclasses.replace(ask((1, 2, 1024)), scaling="weak")
    assert measured(run.measure_plan(asked, ["train.py"], no_mpirun)) == [(1, 1), (2, 1), (2, 2)]


def test_what_is_too_slow_is_not_tried_with_more_rows(host):
    host.failing = {32: phantoms.NotMeasured("it had not reached 25 steps", updates=2, is_late=True)}
    with pytest.raises(phantoms.NotMeasured, match="(?s)fewer than two sizes.*rank 0 of 1: a smaller slice took"):
        measure(1, 2, 32, 1024)
    assert host.started == [(1024, 1), (1024, 2), (32, 2)]


def test_a_batch_that_does_not_fit_is_extrapolated_and_named(host):
    host.row, host.constant = 100 * MIB, 1 << 30
    plan = measure(1, 2, 32, 1024, per_host=1)
    assert measured(plan) == [(32, 1), (86, 1), (1024, 1)], "12 rows tell that 32 fit, and 1024 do not"
    said = [one for one in plan.assumptions if "rank 0 of 1 " in one]
    assert len(said) == 1 and "it may take 116.26 GiB, and this host leaves 16.00 GiB" in said[0]
    assert Compute(plan).estimate_seconds(1) == pytest.approx(1e-3 + 1e-5 * ROWS)


def test_copies_that_do_not_fit_are_not_started(host):
    host.free, host.constant = 2 << 30, 1 << 30
    with pytest.raises(phantoms.NotMeasured, match="(?s)no size with 2 at once.*--ranks-per-host"):
        measure(1, 2, 1024)
    assert {copies for _, copies in host.started} == {1}


def test_where_one_size_does_not_tell_how_memory_grows_a_smaller_step_does(host):
    host.free, host.constant = 8 << 30, 1 << 30  # 32 rows might take 32 times what one does
    measure(1, 2)
    assert host.started == [(2, 1), (2, 2), (1, 1)]
    host.started.clear()
    plan = measure(1, 2, 32, 1024)
    smaller = host.started[2][0]
    assert 1024 > smaller > 32 and host.started[2:] == [(smaller, 2), (32, 2), (2, 2), (1, 1)]
    assert measured(plan) == sorted(host.started)


def test_sizes_that_reduce_otherwise_than_most_are_left_out(host, capsys):
    for how in ("unlike", "more"):
        setattr(host, how, (1024,))
        plan = measure(1, 2, 32, 1024)
        assert measured(plan) == [(1, 1), (2, 2), (32, 2)]
        assert any("rank 0 of 1024 is extrapolated" in one and "otherwise than most" in one for one in plan.assumptions)
        setattr(host, how, ())
    assert "and 1 message, 1 allgather, 1 collective; most reduce 1 gradient" in capsys.readouterr().err


def test_one_rank_alone_may_have_other_collectives(host):
    host.more = (1,)
    plan = measure(1, 2, 32, 1024)
    assert measured(plan) == [(1, 1), (2, 2), (32, 2), (1024, 1), (1024, 2)]
    assert [size.bytes for size in plan.sizes] == [(), (512, 512), (32, 32), (1, 1), (1, 1)]


def test_a_check_says_where_it_does_not_compare_like_with_like(host, monkeypatch, capsys):
    monkeypatch.setattr(started, "time_real_run", lambda *_: 0.01)
    for name in mpirun_options.ALLOCATIONS:
        monkeypatch.delenv(name, raising=False)
    for hosts, said in (((), True), (("a", "b"), False)):
        assert started.check_predictions(a_plan(), [1, 2, 4], no_mpirun, hosts) == 0
        told = capsys.readouterr().err
        assert ("4 ranks are predicted on 2 hosts and measured on this one, of 2 cores" in told) == said
        assert "2 ranks are predicted" not in told


def test_of_one_size_memory_is_at_most_as_much_more_as_rows_are():
    size = plan_file.Size(8, 1, 4, (1.0,), (), (), 100, 300)
    other = plan_file.Size(2, 1, 16, (1.0,), (), (), 100, 360)
    assert sizes.estimate_peak([size], 16) == 900
    assert sizes.estimate_peak([size, other], 32) == pytest.approx(440)
    assert sizes.estimate_peak([plan_file.Size(8, 1, 0, (1.0,), (), (), 100, 300)], 0) == 300
