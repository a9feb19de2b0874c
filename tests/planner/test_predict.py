"""The model: what lies on a line is found on it, sums hide where they can, and the choice follows from the figures."""

import json
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from planner_plans import a_plan

from matex_tf import settings
from matex_tf.costs import collectives
from matex_tf.launch.planning.run import rescale_batch
from matex_tf.planner import buckets, report
from matex_tf.planner.choice import choose_ranks, describe_improvements, list_improvements
from matex_tf.planner.compute import Compute, compute_expected_maximum
from matex_tf.planner.plan_file import ASSUMED, EXTRAPOLATED, MEASURED, TWO_HOSTS, Gradient, PlanFileError, read_link
from matex_tf.planner.predict import Predictor

RANKS = [1, 2, 4, 8, 16, 32, 64]


def test_computation_lies_on_the_line_of_the_measured_sizes():
    compute = Compute(a_plan())
    for ranks in RANKS:
        assert compute.estimate_seconds(ranks) == pytest.approx(1e-3 + 1e-4 * 64 / ranks)
        assert compute.estimate_ready_times(ranks)[-1] == pytest.approx(compute.estimate_seconds(ranks))
    assert compute.split_seconds() == (pytest.approx(1e-3), pytest.approx(1e-4))
    # 5 rows: the largest slice of 64 rows on 13 ranks.
    assert compute.estimate_seconds(13) == pytest.approx(1.5e-3)


def test_a_step_that_is_not_sharded_takes_the_same_on_any_number_of_ranks():
    plan = a_plan(rows=0, sizes=tuple(replace(size, rows=0, steps=(0.1,)) for size in a_plan().sizes))
    assert {Compute(plan).estimate_seconds(ranks) for ranks in RANKS} == {0.1}


def test_what_is_far_from_the_measured_sizes_is_marked():
    compute = Compute(a_plan())
    assert [compute.find_mark(ranks) for ranks in (1, 8, 16, 32, 64)] == [MEASURED] * 4 + [EXTRAPOLATED]
    marks = {step.ranks: step.link_mark for step in map(Predictor(a_plan()).predict_step, (1, 2, 4))}
    assert marks == {1: MEASURED, 2: MEASURED, 4: ASSUMED}


def test_the_slowest_of_many():
    steps = list(np.random.default_rng(0).normal(1.0, 0.03, 2000))
    for ranks in (2, 16, 128):
        drawn = np.random.default_rng(1).choice(steps, (4000, ranks)).max(axis=1).mean()
        assert compute_expected_maximum(steps, [1.0] * len(steps), ranks) == pytest.approx(drawn, rel=2e-3)
    assert compute_expected_maximum([1.0, 2.0], [3.0, 1.0], 1) == 1.25


def _best_of_all(ready, sizes, cost):
    """Every set of buckets."""
    count, found = len(sizes), []
    for inner in range(count):
        for chosen in combinations(range(1, count), inner):
            end, borders = 0.0, [0, *chosen, count]
            for begin, stop in zip(borders, borders[1:]):
                end = max(end, max(ready[:stop])) + cost(sum(sizes[begin:stop]))
            found.append(end)
    return min(found)


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_the_best_that_there_are(seed):
    draws = np.random.default_rng(seed)
    ready, sizes = np.sort(draws.uniform(0, 1, 8)).tolist(), draws.uniform(1, 9, 8).tolist()
    cost = collectives.Link(0.05, 0.02).estimate_message
    wanted = pytest.approx(_best_of_all(ready, sizes, cost))
    assert buckets.compute_plan_end(buckets.find_best_plan(ready, sizes, cost), ready, sizes, cost) == wanted
    price = buckets.sample_price(cost, sum(sizes))
    assert buckets.compute_plan_end(buckets.find_best_plan(ready, sizes, price), ready, sizes, price) == wanted


def test_sums_hide_behind_the_computation_between_hosts_but_for_the_last():
    sizes = tuple(replace(size, at=()) for size in a_plan().sizes)
    fast, slow = (
        a_plan(network=name, collectives=(), ranks_per_host=1, sizes=sizes, links=()) for name in ("1e-9:1e15", "0:1e9")
    )
    assert Predictor(fast).predict_step(2).exposed == pytest.approx(0, abs=1e-3)
    hidden, at_once = Predictor(slow).predict_step(2), Predictor(replace(slow, overlaps=False)).predict_step(2)
    assert hidden.overlapped and not at_once.overlapped
    # The last gradient, 4 MB at 1 GB/s, is exposed in any case; the first 40 kB before it are hidden.
    assert hidden.exposed == pytest.approx(4e-3 + 4e6 * collectives.ADDITION, rel=0.3)
    assert hidden.exposed < at_once.exposed


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_one_rank_does_not_tell_when_gradients_of_ranks_are_there(scaling):
    """It hands all of them over at the end of its step, of as many rows as ranks have with weak scaling."""
    first, *_ = sizes = a_plan().sizes
    if scaling == "weak":
        sizes = [replace(size, rows=64, copies=1) for size in sizes]
    plan = a_plan(scaling=scaling, sizes=(replace(sizes[0], ready=(first.typical, first.typical)), *sizes[1:]))
    without = a_plan(scaling=scaling, sizes=tuple(sizes[1:]))
    assert Compute(plan).estimate_ready_times(4) == Compute(without).estimate_ready_times(4)


def test_a_step_is_the_sum_of_its_parts_and_lies_in_its_range():
    for step in map(Predictor(a_plan()).predict_step, RANKS):
        assert step.step == pytest.approx(step.compute + step.exposed + step.small + step.waiting)
        assert step.low <= step.step <= step.high
    alone = Predictor(a_plan()).predict_step(1)
    assert (alone.exposed, alone.small, alone.efficiency) == (0, 0, 1)


def test_weak_scaling_keeps_the_rows_of_a_rank():
    sizes = tuple(replace(size, rows=64, steps=(7.4e-3,)) for size in a_plan().sizes)
    steps = list(map(Predictor(a_plan(scaling="weak", sizes=sizes)).predict_step, (1, 16)))
    assert steps[0].rows == steps[1].rows == 64 and steps[0].compute == steps[1].compute
    assert steps[1].rows_a_second == pytest.approx(16 * 64 / steps[1].step)


def test_the_choice():
    predictor = Predictor(a_plan())
    steps = list(map(predictor.predict_step, RANKS))
    good = [step.ranks for step in steps if step.efficiency >= 0.5]
    assert choose_ranks(predictor, steps, 0.5).best.ranks == max(
        good, key=lambda n: predictor.predict_step(n).rows_a_second
    )
    assert "efficiency 0.5" in choose_ranks(predictor, steps, 0.5).reason
    chosen = choose_ranks(predictor, steps, deadline=steps[1].step * 100, steps=100)
    assert chosen.best.ranks == min(one.ranks for one in steps if one.step <= steps[1].step)
    assert choose_ranks(predictor, steps, deadline=1e-9, steps=100).best is None
    unknown = choose_ranks(Predictor(a_plan(why_no_epoch="it does not tell")), steps, deadline=1.0)
    assert unknown.best is None and "are not known: it does not tell. --epoch-steps NUMBER" in unknown.reason


def test_where_nothing_fits_it_is_said_what_would():
    """1 MB a row above 164 MB, and 4.04 MB of gradients."""
    sizes = [replace(size, peak_bytes=164_000_000 + 10**6 * size.rows) for size in a_plan().sizes]
    plan = a_plan(sizes=tuple(sizes))

    def advise(memory, **changed):
        predictor = Predictor(replace(plan, **changed))
        found = choose_ranks(predictor, [predictor.predict_step(1)], memory=memory)
        assert found.best is None and "no number of ranks asked for fits" in found.reason
        return found.reason

    memory = 1.15 * 184.5e6
    assert "4 ranks would fit, with 20 rows each" in advise(memory)
    assert Predictor(plan).predict_step(4).memory * 1.15 <= memory < Predictor(plan).predict_step(3).memory * 1.15
    assert "MATEX_MICROBATCH=auto" in advise(memory)
    assert "One row takes 0.15 GiB, which neither more ranks nor MATEX_MICROBATCH reduce" in advise(1e6)
    weak = tuple(replace(size, rows=64) for size in sizes)
    told = advise(1e6, scaling="weak", sizes=weak)
    assert "MATEX_MICROBATCH=auto" in told and "ranks would fit" not in told and "One row" not in told
    assert "computes the whole batch" in advise(1e6, rows=0, sizes=tuple(replace(size, rows=0) for size in sizes))
    assert "parts of 8 rows (MATEX_MICROBATCH)" in advise(1.15 * 170e6, microbatch=8)
    assert "measured with parts that fit" in advise(1.15 * 170e6, microbatch=settings.AUTO)


def test_what_would_help_is_priced_and_ordered():
    """On two hosts of two cores, over a slow network, one rank a host has the network to itself, and both cores."""
    sizes = tuple(replace(a_plan().sizes[0], ranks=n, copies=copies, rows=64 // n, steps=(1e-3 + c * 6.4e-3 / n,) * 5)
                  for n, copies, c in ((1, 1, 1), (4, 2, 2), (16, 1, 1), (16, 2, 2)))  # fmt: skip
    plan = a_plan(sizes=sizes, network="1e-5:4e9", overlaps=False)
    predictor = Predictor(plan)
    one = predictor.predict_step(4)
    found = {name: (times, mark) for name, times, mark in list_improvements(predictor, one)}
    fewer = Predictor(replace(plan, ranks_per_host=1)).predict_step(4)
    assert fewer.compute == pytest.approx(2.6e-3) and one.compute == pytest.approx(4.2e-3)
    assert found["1 rank a host, on 4 hosts in place of 2"] == (one.step / fewer.step, fewer.mark)
    assert found["MATEX_COMPRESSION=fp16, which changes results"][0] == pytest.approx(
        one.step / predictor.predict_step(4, 0.5).step
    )
    twice = Predictor(rescale_batch(plan, 128)).predict_step(4)
    assert found["twice the rows in a batch, which changes the training"][0] == pytest.approx(
        twice.rows_a_second / one.rows_a_second
    )
    told = describe_improvements(predictor, one)
    order = sorted((name for name in found if found[name][0] >= 1.05), key=lambda name: -found[name][0])
    assert len(order) == 3 and [told.index(name) for name in order] == sorted(told.index(name) for name in order)
    assert f"1 rank a host, on 4 hosts in place of 2 (?{one.step / fewer.step:.2f} times as fast)" in told
    assert told in choose_ranks(predictor, [predictor.predict_step(1), one]).reason
    # Beside other work, which each size met for itself, only what compares no sizes is advised.
    for number in range(4):
        busy = tuple(replace(size, busy=0.5 * (at == number)) for at, size in enumerate(sizes))
        (only,) = list_improvements(Predictor(replace(plan, sizes=busy)), one)
        assert "MATEX_COMPRESSION" in only[0]
    # With weak scaling all slices have as many rows: what others take is not known.
    weak = replace(plan, scaling="weak", sizes=tuple(replace(size, rows=64) for size in sizes))
    assert not any("rows" in name for name, *_ in list_improvements(Predictor(weak), Predictor(weak).predict_step(4)))
    with pytest.raises(PlanFileError, match="--batch 128: all slices that were measured have as many rows"):
        rescale_batch(weak, 128)
    # Alone on its host, and with a step that no number of ranks lowers, nothing does.
    alone = Predictor(a_plan(sizes=tuple(replace(size, rows=0) for size in a_plan().sizes), rows=0))
    assert describe_improvements(alone, alone.predict_step(1)) == ""


def test_other_batches_are_computed_by_the_same_slices():
    other = rescale_batch(a_plan(), 128)
    steps = list(map(Predictor(other).predict_step, (1, 2, 8)))
    assert [step.compute for step in steps] == pytest.approx([1e-3 + 1e-4 * rows for rows in (128, 64, 16)])
    assert [step.rows for step in steps] == [128, 64, 16] and other.epoch_steps == 5
    assert steps[0].efficiency == 1 and steps[0].rows_a_second == pytest.approx(128 / 13.8e-3)


def test_a_busy_machine_widens_the_range():
    sizes = tuple(replace(size, busy=0.5) for size in a_plan().sizes)
    quiet, busy = Predictor(a_plan()).predict_step(4), Predictor(a_plan(sizes=sizes)).predict_step(4)
    assert quiet.low - busy.low == pytest.approx(quiet.compute / 2)
    assert quiet.step == busy.step and busy.high - quiet.high > quiet.compute / 2


def test_no_step_counts_on_sums_of_mpi_over_more_ranks_than_were_measured():
    """With slow starts MPI's halving beats a ring of many; whether MPI takes it there, two hosts do not tell."""
    link = a_plan().links[0]
    sums = [1e-3 + size * 1e-9 for size in link.bytes]
    two = replace(link, scope=TWO_HOSTS, ranks=2, hosts=2, seconds=tuple(sums), asleep=tuple(sums))
    large = (Gradient("b", 4_000), Gradient("a", 32 << 20))
    measured, unmeasured = (
        a_plan(links=links, ranks_per_host=1, gradients=large, overlaps=False, network="1e-3:1e9")
        for links in ((link, two), (link,))
    )
    for plan, known in ((measured, 2), (unmeasured, 1)):
        predictor = Predictor(plan)
        for ranks in (2, 16):
            one, links = predictor.predict_step(ranks), predictor.links
            assert links.is_mpi_known(ranks) == (ranks <= known)
            if ranks > known:
                size = sum(g.bytes for g in large)
                ways = [links.estimate_sum(ranks, name, size) for name in ("ring", "two_level", "mpi")]
                assert one.algorithm in ("ring", "two_level")
                assert one.exposed == pytest.approx(min(ways[:2]) + links.estimate_small(ranks, 0))
                assert ranks == 2 or ways[2] < 0.5 * min(ways[:2])
                doubted = (ways[2] + links.estimate_small(ranks, 0) + one.small) / 1.5
                assert one.low == pytest.approx(min(one.step, one.compute + doubted), rel=0.01)
    links = Predictor(unmeasured).links
    small = {name: links.estimate_sum(16, name, 32 << 10) for name in collectives.EXACT}
    assert set(small.values()) == {collectives.estimate_flat(16, 1, 32 << 10, links.network, links.memory)}


def test_what_transfers_take_of_a_core_makes_overlapped_computation_longer():
    link = a_plan().links[0]
    between = [replace(link, scope=TWO_HOSTS, hosts=2, cpu_per_byte=cpu) for cpu in (0.0, 1e-10, 1.0)]
    free, taken, all_of_it = (Predictor(a_plan(links=(link, one))).predict_step(16) for one in between)
    # 4.04 MB at 0.1 ns a byte, of a rank with one core.
    assert free.overlapped and 0 < taken.step - free.step <= 4.04e-4 * 1.01
    assert not all_of_it.overlapped
    sizes = tuple(replace(size, cores=0.0) for size in a_plan().sizes)
    assert Predictor(a_plan(links=(link, between[1]), sizes=sizes)).predict_step(16).step == free.step, "on a device"


def test_a_link_is_the_last_line_that_ranks_print():
    link = a_plan().links[0]
    assert read_link("a note\n" + json.dumps(vars(link)) + "\n") == link
    for wrong in ("", "no link", "[1]", "{}"):
        with pytest.raises(PlanFileError, match="no measurement of a link"):
            read_link(wrong)


def test_what_is_printed_and_written():
    predictor = Predictor(a_plan())
    steps = list(map(predictor.predict_step, RANKS))
    table = report.format_table(predictor.plan, steps)
    assert table.row_count == len(RANKS)
    ElementTree.fromstring(report.draw_chart(steps))
    found = report.make_json(predictor.plan, steps, choose_ranks(predictor, steps))
    assert [one["ranks"] for one in found["predictions"]] == RANKS
    heading = report.format_heading(predictor.plan, predictor)
    assert "2 ranks" in heading and "an epoch of the script alone: 10 steps" in heading
    blind = a_plan(epoch_steps=0, why_no_epoch="it does not tell")
    assert "epoch: its steps are not known: it does not tell" in report.format_heading(blind, Predictor(blind))
    assert "epoch min" not in [column.header for column in report.format_table(blind, steps).columns]
    assert "?" in report.format_closing(predictor.plan, predictor)
    assert "up to 64 rows on a rank" in report.format_closing(predictor.plan, predictor, 1e9)
    weak = Predictor(a_plan(scaling="weak", sizes=tuple(replace(size, rows=64) for size in a_plan().sizes)))
    assert "row" not in report.format_closing(weak.plan, weak, 1e6), "memory is known for one number of rows only"
    rates = [replace(steps[0], rows_a_second=rate) for rate in (9999.4, 9999.6)]
    shown = {column.header: list(column.cells) for column in report.format_table(predictor.plan, rates).columns}
    assert shown["rows/s"] == ["9999", "10000"]


def test_a_network_is_a_name_or_two_numbers():
    assert collectives.parse_network("2e-6:25e9") == (2e-6, 1 / 25e9)
    assert collectives.parse_network("infiniband") is collectives.NETWORKS["infiniband"]
    for wrong in ("token ring", "1", "-1:5", "1:0", "nan:1e9", "1e-6:nan", "inf:1e9", "1e-6:inf"):
        with pytest.raises(ValueError, match="expected one of ethernet1"):
            collectives.parse_network(wrong)


def a_plan_of_16_cores(**changed):
    """1 ms and 0.1 ms a row for ranks of a full host, which have a core each; alone, with 16 cores, a tenth of it."""
    sizes = [
        replace(a_plan().sizes[1], ranks=n, copies=16, rows=64 // n, steps=(1e-3 + 6.4e-3 / n,) * 5) for n in (16, 64)
    ]
    alone = replace(a_plan().sizes[0], steps=(7.4e-4,) * 5)
    return a_plan(sizes=(alone, *sizes), cores=16, ranks_per_host=16, links=(), **changed)


def test_efficiency_compares_equal_cores():
    predictor = Predictor(a_plan_of_16_cores())
    alone, few, host = map(predictor.predict_step, (1, 2, 16))
    assert alone.efficiency == 1 and alone.efficiency_mark == MEASURED
    assert host.efficiency == pytest.approx(7.4e-3 / (16 * host.step))
    small = (Gradient("b", 40), Gradient("a", 400))
    slow = a_plan_of_16_cores(gradients=small)
    slow = Predictor(replace(slow, sizes=(replace(slow.sizes[0], steps=(4e-3,)), *slow.sizes[1:])))
    chosen = choose_ranks(slow, list(map(slow.predict_step, (1, 16))), 0.3)
    assert chosen.best.ranks == 16, "which the script alone with 16 cores would need 2.3 times as long for"
    # 64 rows are more than twice the 4 rows of a rank of a full host; two ranks are priced with a core each.
    assert host.alone_mark == few.alone_mark == EXTRAPOLATED and host.compute_mark == MEASURED
    assert few.compute_mark == EXTRAPOLATED and few.compute == pytest.approx(4.2e-3)
    assert few.efficiency == pytest.approx(7.4e-3 / (2 * few.step))
    whole = replace(a_plan().sizes[0], copies=16, steps=(9e-3,))
    host = Predictor(a_plan_of_16_cores(whole=whole)).predict_step(16)
    assert host.efficiency == pytest.approx(9e-3 / (16 * host.step)) and host.alone_mark == MEASURED
    # Where a host has one rank, that is measured alone, and has as many cores as all others.
    sizes = tuple(replace(size, copies=1) for size in a_plan().sizes)
    one = Predictor(a_plan(sizes=sizes, cores=16, ranks_per_host=1)).predict_step(4)
    assert one.efficiency == pytest.approx(7.4e-3 / (4 * one.step)) and one.alone_mark == MEASURED


def test_of_one_size_of_a_full_host_rows_are_priced_as_those_of_ranks_alone():
    sizes = (a_plan().sizes[0], replace(a_plan().sizes[2], copies=1), a_plan().sizes[2])
    found = Compute(a_plan(sizes=tuple(sorted(sizes, key=lambda size: (size.ranks, size.copies)))))
    assert found.estimate_seconds(2) == pytest.approx(4.2e-3, rel=1e-6)
    assert found.split_seconds() == (pytest.approx(1e-3), pytest.approx(1e-4))


def test_figures_carry_the_marks_of_what_they_are_made_of():
    plan = a_plan_of_16_cores()
    table = report.format_table(plan, list(map(Predictor(plan).predict_step, (1, 16, 32))))
    shown = {column.header: list(column.cells) for column in table.columns}
    for name in ("step ms", "range", "rows/s", "efficiency", "epoch min"):
        alone, host, hosts = shown[name]
        assert alone[0].isdigit() and host[0] == hosts[0] == "?", (name, shown[name])
    measured = replace(plan, links=(replace(a_plan().links[0], ranks=16),))
    table = report.format_table(measured, [Predictor(measured).predict_step(16)])
    marks = {column.header: next(iter(column.cells))[0] for column in table.columns}
    assert marks["efficiency"] == "~" and marks["rows/s"].isdigit() and marks["range"].isdigit()


def test_the_heading_tells_what_was_measured_alone_and_what_at_once():
    plan = a_plan_of_16_cores()
    said = report.format_heading(plan, Predictor(plan))
    assert "rank 0 of 1 (alone, 5 steps); rank 0 of 16, 64 (16 at once, 5 steps)" in said
    assert "with 16 at once: 1.0 ms a step + 0.1 ms a row" in said


def test_the_heading_says_how_a_step_depends_on_rows_only_where_that_was_measured():
    sizes = tuple(replace(size, rows=64, steps=(7.4e-3,)) for size in a_plan().sizes)
    one, all_rows = a_plan(scaling="weak", sizes=sizes), a_plan(rows=0, sizes=tuple(replace(s, rows=0) for s in sizes))
    assert "7.4 ms a step of 64 rows; no other number of rows was measured" in report.format_heading(
        one, Predictor(one)
    )
    assert "each of which computes the whole batch" in report.format_heading(all_rows, Predictor(all_rows))
    same = a_plan(sizes=tuple(replace(size, steps=(1e-3,)) for size in a_plan().sizes))
    assert "1.0 ms a step + 0 ms a row" in report.format_heading(same, Predictor(same))
