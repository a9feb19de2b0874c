"""The papers' models: the numbers that papers print, and what has to hold of any formula of that kind."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from matex_tf.planner import buckets, queueing
from matex_tf.planner.papers import htc, htc_minibatch, ibatch, xai

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "papers.md"
sys.path.insert(0, str(DOCS / "figures"))

import papers_page  # noqa: E402
from papers import comparisons, gadei, htc_gpus, htc_memory, ibatch_speedups, matex, networks  # noqa: E402


def test_the_page_is_what_the_models_give():
    assert PAGE.read_text() == papers_page.format_page(), "run: python docs/figures/papers_page.py > docs/papers.md"


def test_xai_closed_form_is_the_sum_and_2_at_the_edge():
    def sending(workers, at_once, share):
        """Equations 2 to 4, as printed."""
        if at_once > 1:
            return math.comb(workers, at_once) * share**at_once
        return 1 - math.fsum(sending(workers, m, share) for m in range(2, workers + 1))

    for workers, share in itertools.product(range(2, 9), (0.05, 0.1, 0.3, 0.7)):
        summed = math.fsum(m * sending(workers, m, share) for m in range(1, workers + 1))
        assert summed == pytest.approx(xai.expected_bandwidth_closed(workers, share), rel=1e-12)
        assert bool(xai.servers(workers, share).outside) == (share >= 1 / (workers - 1))
    for workers in range(3, 65):
        assert xai.expected_bandwidth_closed(workers, 1 / (workers - 1)) == pytest.approx(2, rel=1e-9)
        assert "has to be below" in xai.servers(workers, 1 / (workers - 1)).outside
    assert sending(6, 1, 0.3) == pytest.approx(-1.03, abs=0.005), "no probability outside the domain"
    assert [xai.servers(*case).value for case in ((8, 0.5), (16, 0.3))] == [45, 182]
    assert xai.transfer_share(0.2, 1.0) == pytest.approx(0.2)
    assert xai.servers(4096, 0.9).value == math.inf and xai.servers(4096, 0.9).outside
    with pytest.raises(ValueError, match="P_t from 0 to 1"):
        xai.servers(4, 1.5)


def test_xai_figures_8_9_and_10():
    for workers, percent in itertools.product(range(2, 7), range(1, 21)):
        estimate = xai.servers(workers, percent / 100)
        assert estimate.outside or estimate.value == 2
    both = [
        share
        for share in np.arange(0.38, 0.44, 0.005)
        if xai.servers(5, share).value == 5
        and abs(
            queueing.compute_throughput(5, 5, 1 - share, share) / queueing.compute_throughput(5, 1, 1 - share, share)
            - 2
        )
        < 0.1
    ]
    assert any(0.385 < share < 0.415 for share in both), "one share gives both of Figure 10's numbers"
    layers = list(networks.ALEXNET_LAYERS.values())
    assert sum(layers) == 62_378_344, "XAI's Table 1"
    first, second, third, fourth = comparisons.divide_layers(layers, 4)
    assert second > third > 2 * max(first, fourth) and second > 0.6


def test_exact_servers_are_those_of_the_specification():
    cases = {(8, 0.1): 2, (8, 0.5): 5, (16, 0.3): 6, (32, 0.05): 2, (32, 0.2): 8, (4, 0.5): 3}
    assert {case: queueing.find_least_servers(case[0], 1 - case[1], case[1]) for case in cases} == cases
    edge = {
        workers: queueing.compute_efficiency(workers, 2, 1 - 1 / (workers - 1), 1 / (workers - 1))
        for workers in (4, 16)
    }
    assert edge[4] == pytest.approx(0.948, abs=5e-4) and edge[16] == pytest.approx(0.982, abs=5e-4)
    assert queueing.compute_efficiency(1024, 3, 0.9, 0.1) == pytest.approx(30 / 1024), (
        "a thousand workers overflow nothing"
    )
    assert queueing.compute_throughput(4, 2, 0.0, 0.5) == 4 and queueing.compute_throughput(4, 2, 0.5, 0.0) == 8
    with pytest.raises(ValueError, match="not both 0"):
        queueing.compute_throughput(4, 2, 0.0, 0.0)


@pytest.mark.parametrize("target", [0.5, 0.95, 1 - 2**-53])
@pytest.mark.parametrize("workers, share", [(1, 1.0), (4, 3.0), (4, 1e-7), (1000, 0.3)])
def test_each_efficiency_below_1_is_reached_at_the_latest_where_no_worker_shares_a_server(workers, share, target):
    least, enough = queueing.find_least_servers(workers, 0.5, 0.5, share, target), max(1, math.ceil(workers / share))
    assert queueing.compute_efficiency(workers, least, 0.5, 0.5, share) >= target or least == enough
    assert 1 <= least <= enough
    assert least == 1 or queueing.compute_efficiency(workers, least - 1, 0.5, 0.5, share) < target
    with pytest.raises(ValueError, match="expected a share above"):
        queueing.find_least_servers(workers, 0.5, 0.5, 1e-300, target)


def test_htc_lemmas_are_as_printed_and_turn_around():
    assert f"{htc_gpus.overhead(4, 0.8):.0%}" == "9%" and htc_gpus.gpus_for(3, 0.1) == 4
    assert htc_gpus.overhead(7, htc_gpus.efficiency(7, 0.05)) == pytest.approx(0.05)
    assert htc_gpus.gpus_for(11, 0.1) is None, "Amdahl's ceiling is (1 + R_O) / R_O = 11"
    with pytest.raises(ValueError, match="above 1/4"):
        htc_gpus.overhead(4, 0.25)
    assert htc.servers(8, 0.5e9, 1e9, 2.0).value == 4 and not htc.servers(8, 0.5e9, 1e9, 2.0).outside
    assert htc.servers(8, 2e9, 1e9, 2.0).outside, "a worker's own link is too slow"


def test_htc_memory():
    printed, mended = htc.memory_printed(htc.ALEXNET, 128), htc_memory.memory(htc.ALEXNET, 128)
    shapes = htc.shapes(htc.ALEXNET)
    assert [shape.width for shape in shapes] == [224, 55, 27, 27, 13, 13, 13, 13, 6] and shapes[-1].size == 9216
    assert printed.left(2.0**34) - printed.left(2.0**33) == 2.0**33
    assert htc.memory_printed(htc.ALEXNET, 256).classifier == printed.classifier, "equation 4 as printed knows no rows"
    assert htc_memory.memory(htc.ALEXNET, 256).classifier > mended.classifier
    slots = htc_memory.memory(htc.ALEXNET, 128, slots=2)
    more = slots.parameters + slots.classifier - mended.parameters - mended.classifier
    assert more == 4 * 2 * sum(networks.ALEXNET_LAYERS.values()), "two slots of each parameter"


def test_htc_program_is_the_best_of_all():
    random = np.random.default_rng(1)
    fits = 0
    for _ in range(200):
        shape = random.integers(2, 7), random.integers(2, 4)
        times, memory = random.uniform(1, 10, shape).tolist(), random.uniform(1, 10, shape).tolist()
        bound = random.uniform(1, 8) * shape[0]
        found = htc_minibatch.choose_algorithms(times, memory, bound)
        seconds = [
            sum(row[algorithm] for row, algorithm in zip(times, algorithms))
            for algorithms in itertools.product(range(shape[1]), repeat=shape[0])
            if sum(row[algorithm] for row, algorithm in zip(memory, algorithms)) <= bound
        ]
        assert (found is None) == (not seconds)
        if found is not None:
            assert found.seconds == pytest.approx(min(seconds))
            assert found.seconds == pytest.approx(sum(row[a] for row, a in zip(times, found.algorithms)))
            assert sum(row[a] for row, a in zip(memory, found.algorithms)) <= bound * (1 + 1e-9)
            fits += 1
    assert fits > 100


def test_htc_program_of_a_hundred_layers():
    found = htc_minibatch.choose_algorithms([[2.0, 1.0]] * 100, [[10, 15]] * 100, 1234)
    assert found is not None and found.seconds == 154 and sum(found.algorithms) == 46


def test_htc_figure_2_rises_then_falls_later_with_more_memory():
    peaks = []
    for gibibytes in (1.5, 2, 3):
        found = htc_minibatch.list_batches(htc.ALEXNET, range(32, 512, 32), gibibytes * 2**30)
        rates = [batch.rows_per_second for batch in found]
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1]) and 0 < peak < len(rates) - 1
        peaks.append(found[peak].rows)
    assert peaks == sorted(set(peaks))


def plan_best_pulls(layers):
    """The best plan of `buckets`, with time reversed: gradients are transferred after their computation."""
    ready = list(itertools.accumulate(reversed(layers.compute)))
    plan = buckets.find_best_plan(ready, layers.transfer[::-1], lambda seconds: layers.start_up + seconds)
    return tuple(layers.count - boundary for boundary in reversed(plan))


def hides(layers, plan):
    """Equation 5: whether each pull takes at least as long as the computation of the preceding batch."""
    batches = list(itertools.pairwise(plan))
    return all(layers.pull(*after) >= layers.computation(*batch) for batch, after in itertools.pairwise(batches))


def test_ibatch_optimum_is_the_best_plan_there_is_and_greedy_is_no_better():
    random = np.random.default_rng(1)
    later = 0
    for _ in range(100):
        count, scale = int(random.integers(1, 8)), 10 ** random.uniform(-1, 1)
        times = random.exponential(1, count).tolist(), random.exponential(scale, count).tolist()
        layers = ibatch.Layers(*times, random.choice([0.0, 0.1, 1.0]))
        plans = [(0, *cuts, count) for size in range(count) for cuts in itertools.combinations(range(1, count), size)]
        best = ibatch.compute_end(layers, plan_best_pulls(layers))
        greedy = ibatch.compute_end(layers, ibatch.plan_greedy(layers))
        assert best == pytest.approx(min(ibatch.compute_end(layers, plan) for plan in plans))
        assert greedy >= best - 1e-12
        later += greedy > best * (1 + 1e-9)
        for plan in plans:
            if hides(layers, plan):  # the sum of equations 1 to 4: a pull, the other pulls, the last computation
                pulls = sum(layers.pull(*batch) for batch in itertools.pairwise(plan))
                summed = pulls + layers.computation(plan[-2], plan[-1])
                assert summed == pytest.approx(ibatch.compute_end(layers, plan))
    assert later, "the greedy plan is not always best"


def test_ibatch_algorithms_meet_equation_5():
    layers = ibatch.Layers([1.0] * 6, [2.0] * 6, 0.5)
    for plan in (ibatch.plan_front_to_back(layers), ibatch.plan_back_to_front(layers)):
        assert plan is not None and plan[0] == 0 and plan[-1] == 6 and hides(layers, plan)
    with pytest.raises(ValueError, match="for each time"):
        ibatch.Layers([1.0], [1.0, 2.0], 0.0)


def test_ibatch_speedups():
    for default, printed in zip((26, 25, 23, 22), (29, 28, 26, 25)):
        assert ibatch_speedups.speedup_with_pulls_hidden(30, default) == pytest.approx(printed, rel=0.04)
    assert ibatch_speedups.ceiling(72, 26, 1 / 3) == pytest.approx(29.6, abs=0.05)
    assert ibatch_speedups.ceiling(72, 26, 1.0) == pytest.approx(40.7, abs=0.05)
    assert ibatch_speedups.forward_share(72, 26, 45).outside and not ibatch_speedups.forward_share(72, 26, 32).outside


def test_matex_strong_scaling():
    assert matex.fit_ratio(matex.UNGROUPED).largest_error < 0.1 and matex.fit_ratio(matex.GROUPED).largest_error < 0.068
    left_out = matex.leave_one_out(matex.GROUPED)
    assert max(map(abs, left_out.values())) < 0.11
    assert max(left_out, key=lambda name: abs(left_out[name])) == "ResNet-50"
    ratio = matex.ratio_for(networks.GOOGLENET, 8, 6.0)
    assert matex.speedup(networks.GOOGLENET, 8, ratio) == pytest.approx(6.0)


def test_ibatch_with_sparse_gradients_is_linear_where_pulls_hide():
    assert ibatch_speedups.communication_share(30, 25) == pytest.approx(0.2)
    assert ibatch_speedups.speedup_with_sparse_gradients(72, 0.3, 1 / 3) == 72
    assert ibatch_speedups.speedup_with_sparse_gradients(72, 0.5, 0.25) == pytest.approx(72 / 1.25)


def test_gadei_bandwidth_is_table_4_but_for_joule():
    off = {name: gadei.worst_required(one) for name, one in gadei.WORKLOADS.items()}
    less = {name: gadei.worst_required(one, gadei.ROUNDING) for name, one in gadei.WORKLOADS.items()}
    assert {name for name, one in less.items() if one > 0.005} == {"Joule"}
    assert all(less[name] < off[name] <= less[name] + gadei.ROUNDING / 0.2 for name in off)
    for name, printed in gadei.HOURS.items():
        if name != "ImageNet":
            assert gadei.hours(name) == pytest.approx(printed, rel=0.01)
    with pytest.raises(ValueError, match="no batch of 256"):
        gadei.hours("ImageNet")
    assert gadei.needed_alone("Joule") == 6.10 and gadei.needed_alone("ImageNet") == pytest.approx(0.517, abs=1e-3)


def test_gadei_utilization_follows_from_how_often_learners_communicate():
    assert gadei.utilization_by_interval(0.3, 1) == pytest.approx(0.3)
    for one in gadei.INTERVALS.values():
        before, after = (share / 100 for share in one.utilization)
        assert gadei.utilization_by_interval(before, gadei.EIGHTH) == pytest.approx(after, rel=0.14)


def test_no_single_bandwidth_gives_gadei_s_table_8():
    for system in range(len(gadei.SYSTEMS)):
        found = [gadei.bandwidth_bracket(gadei.WORKLOADS[name], rows[system]) for name, rows in gadei.SMALLEST.items()]
        assert all(low < high for low, high in found)
        assert max(low for low, _ in found) > min(high for _, high in found)
    assert gadei.bandwidth_bracket(gadei.WORKLOADS["Yelp"], 16) == (10.79, 15.37)
    assert gadei.bandwidth_bracket(gadei.WORKLOADS["CIFAR"], 2)[1] == float("inf"), "no batch of 1 was measured"


def test_every_row_of_a_table_that_is_quoted_is_on_the_page():
    lines = PAGE.read_text().splitlines()
    for table, rows in (("Table 7", gadei.WORKLOADS), ("Table 6", gadei.HOURS), ("Table 8", gadei.SMALLEST),
                        ("Table 1", gadei.INTERVALS), ("Table 4", gadei.WORKLOADS)):  # fmt: skip
        quoted = " ".join(line for line in lines if f", {table} |" in line)
        assert all(name in quoted for name in rows), table
    for one in gadei.WORKLOADS.values():
        assert any(", ".join(f"{used:g}" for used in one.used) in line for line in lines)
    for system in range(len(gadei.SYSTEMS)):
        wanted = ", ".join(str(rows[system]) for rows in gadei.SMALLEST.values())
        assert any(f"| {wanted} |" in line for line in lines)
