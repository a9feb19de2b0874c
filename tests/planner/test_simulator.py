"""Simulated ranks that reduce together: what can be said of a step without a simulation, and what-ifs one by one."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from matex_tf.costs import collectives
from matex_tf.planner import buckets, plan_file, predict, strategies
from matex_tf.planner.simulator import program, ranks, replay, run, trace, what_if

GRADIENTS = 60


def a_plan(overlaps=True, scaling="strong", links=()):
    """Of 1,024 rows on hosts of 16 ranks: 2 ms and 1 ms a row, a third of it before the first gradient."""
    random = np.random.default_rng(1)
    gradients = tuple(
        plan_file.Gradient(f"layer{number}/kernel", int(4 * 10 ** random.uniform(2, 5))) for number in range(GRADIENTS)
    )

    def size(count, rows):
        compute = 0.002 + 0.001 * rows
        ready = tuple(compute * (1 / 3 + 2 / 3 * (number + 1) / GRADIENTS) for number in range(GRADIENTS))
        return plan_file.Size(count, 1, rows, (compute,) * 3, ready, (compute * 0.1, compute * 0.2), 1 << 29, 1 << 30)

    return plan_file.Plan(
        ("train.py",), "here", 16, 16, scaling, overlaps, 1024, 100, gradients,
        (plan_file.Collective("collective", "bn/mean", 256), plan_file.Collective("collective", "bn/variance", 256)),
        (size(1, 1024), size(16, 64), size(1024, 1)), links, "ethernet25",
    )  # fmt: skip


def simulated(*words, count=64, plan=None, **other):
    steady = [] if any(word.startswith("noise=") for word in words) else ["noise=0"]
    return run.simulate_plan(plan or a_plan(), count, what_if.read_changes([*steady, *words]), **other)


def program_of(sizes, ready, meetings=(), compute=None):
    met = tuple(program.TimedCollective(at, "collective", name, size) for at, name, size in meetings)
    return program.Program(compute or ready[-1], tuple(map(str, sizes)), tuple(sizes), tuple(ready), met)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_step_ends_when_its_last_bucket_does(count):
    random = np.random.default_rng(2)
    for _ in range(20):
        gradients = int(random.integers(1, 12))
        ready = np.cumsum(random.exponential(1.0, gradients)).tolist()
        sizes = random.integers(1, 100, gradients).tolist()

        def price(size):
            return 0.3 + 0.02 * size

        plan = buckets.plan_by_size(sizes, 80)
        prices = ranks.Prices([price(sum(sizes[a:b])) for a, b in itertools.pairwise(plan)], price(sum(sizes)), ())
        found = ranks.simulate_ranks(program_of(sizes, ready), count, 3, plan, prices)
        assert found.step == pytest.approx(buckets.compute_plan_end(plan, ready, sizes, price))
        at_once = ranks.simulate_ranks(program_of(sizes, ready), count, 3, None, prices)
        assert at_once.step == pytest.approx(ready[-1] + price(sum(sizes)))
        # What is told apart makes up the whole.
        assert found.compute + found.waiting + found.exposed == pytest.approx(found.step)


def test_collectives_wait_for_the_last_rank_and_buckets_for_their_lane():
    # Rank 1 is twice as slow: it comes to the collective at 2, and has its gradient at 4 of the 3 that are left.
    one = program_of([8], [2.0], [(1.0, "statistics", 4)], compute=2.0)
    prices = ranks.Prices([0.5], 0.5, [0.25])
    slow = ranks.Disturbance(slow={1: 2.0})
    assert ranks.simulate_ranks(one, 2, 1, (0, 1), prices, slow).step == pytest.approx(2.0 + 0.25 + 2.0 + 0.5)
    # Both buckets are ready long before the first is over.
    two = program_of([8, 8], [0.1, 0.2], compute=0.3)
    assert ranks.simulate_ranks(two, 3, 1, (0, 1, 2), ranks.Prices([1.0, 2.0], 3.0, ())).step == pytest.approx(3.1)


def test_one_bucket_is_among_the_greedy_plans():
    """Two buckets satisfy equation 5 of the paper, but have one start-up more."""
    case = [1.0, 2.0], [1.0, 1.0], lambda size: 10.0
    assert buckets.compute_plan_end(buckets.find_greedy_plan(*case), *case) == 12


def test_greedy_buckets_are_never_better_than_the_best():
    random = np.random.default_rng(3)
    for _ in range(100):
        count = int(random.integers(1, 12))
        ready = np.cumsum(random.exponential(1.0, count)).tolist()
        sizes = random.choice([1.0, 10.0, 200.0], count).tolist()
        start_up, byte = random.choice([0.01, 0.5, 3.0]), random.choice([0.001, 0.02])

        def price(size):
            return start_up + byte * size  # noqa: B023

        best = buckets.compute_plan_end(buckets.find_best_plan(ready, sizes, price), ready, sizes, price)
        for plan in (
            buckets.find_greedy_plan(ready, sizes, price),
            buckets.plan_by_size(sizes, 20),
            buckets.plan_by_size(sizes, 0),
        ):
            assert (
                plan[0] == 0
                and plan[-1] == count
                and buckets.compute_plan_end(plan, ready, sizes, price) >= best - 1e-12
            )


def test_rows_shrink_with_ranks_and_beyond_the_measured_sizes_lines_go_on():
    plan = a_plan()
    for count, rows in ((1, 1024), (3, 342), (16, 64), (100, 11), (1024, 1), (4096, 1)):
        found = program.make_program(plan, count)
        assert found.compute == pytest.approx(0.002 + 0.001 * rows)
        assert found.ready[-1] == pytest.approx(found.compute) and len(found.collectives) == 2
    weak = program.make_program(a_plan(scaling="weak"), 64)
    assert weak.compute == pytest.approx(0.002 + 0.001 * 1024)


def test_with_nothing_changed_a_step_is_the_planners():
    for count in (1, 4, 16, 64, 1024):
        for plan in (a_plan(), a_plan(overlaps=False)):
            planned = predict.Predictor(plan).predict_step(count)
            found = simulated(count=count, plan=plan)
            expected = planned.compute + planned.exposed + planned.small
            # A collective within the computation gives buckets time, which the planner does not count.
            assert found.step == pytest.approx(expected, rel=0.01 if planned.overlapped else 1e-9), count
            assert found.waiting == pytest.approx(0)


def test_with_nothing_changed_a_step_is_the_planners_where_transfers_take_cores():
    times = tuple(30e-6 + size * 2e-9 for size in plan_file.LINK_BYTES)
    link = plan_file.LinkMeasurement(plan_file.TWO_HOSTS, 2, 2, plan_file.LINK_BYTES, times, times, 0.0)
    plan, free = (a_plan(links=(dataclasses.replace(link, cpu_per_byte=cpu),)) for cpu in (2e-9, 0.0))
    planned, found = predict.Predictor(plan).predict_step(64), simulated(plan=plan)
    assert planned.overlapped and planned.step > 1.02 * predict.Predictor(free).predict_step(64).step
    assert found.step == pytest.approx(planned.compute + planned.exposed + planned.small, rel=0.01)
    assert found.compute == pytest.approx(planned.compute)
    assert simulated("overlap=off", plan=plan).step == simulated("overlap=off", plan=free).step
    assert simulated("link=ethernet25", plan=plan).step == simulated("link=ethernet25", plan=free).step


def test_what_cannot_be_on_one_host_is_said():
    for word in ("overlap=on", "link=ethernet1", "compression=fp16", "buckets=each", "buckets=best"):
        found = simulated(word, count=16)
        assert found.step == simulated(count=16).step, word
        name = word if word == "overlap=on" else word.partition("=")[0]
        assert found.note == f"{name}: nothing changes on 16 ranks of one host"
        assert not any("link" in one for one in found.assumptions)
        assert simulated(word, count=64).note == simulated(count=16).note == ""
    assert "the given link between hosts" in simulated("link=ethernet1").assumptions[0]
    for name in ("algorithm=ring", "strategy=sharded"):
        found = simulated(name, count=1).note
        assert found == f"{name.partition('=')[0]}: nothing changes on 1 rank of one host"
    assert simulated("overlap=off", "buckets=each").note == "buckets: nothing changes where no sums are overlapped"
    assert simulated("servers=8", "slow=1:2").note == ""
    for word in ("overlap=on", "overlap=off", "buckets=each", "compression=fp16", "algorithm=ring"):
        found = simulated("servers=8", word)
        name = word if word.startswith("overlap") else word.partition("=")[0]
        assert found.step == simulated("servers=8").step
        assert found.note == f"{name}: nothing changes with parameter servers"
    for count in (8, 64):
        assert simulated("servers=8", count=count).assumptions[0] == "ethernet25 between hosts"
    with_mpi = simulated("servers=8", "algorithm=mpi")  # nothing is summed, so nothing is assumed about MPI's sums
    assert with_mpi.assumptions == simulated("servers=8").assumptions
    assert any("MPI's own sums" in assumption for assumption in simulated("algorithm=mpi").assumptions)


def test_what_ifs_change_what_they_name():
    planned = simulated()
    assert simulated("overlap=off").step > planned.step
    assert simulated("link=1us,100GB/s").step < planned.step < simulated("link=ethernet1").step
    assert simulated("slow=3:1.5").waiting > planned.waiting + 0.3 * planned.compute
    assert simulated("compression=topk:0.001", "link=ethernet1").step < simulated("link=ethernet1").step
    assert simulated("ranks-per-host=64").assumptions == ()
    assert simulated("compression=fp16", count=16).step == simulated(count=16).step, "between hosts only"
    best = simulated("overlap=on").step
    for way in ("ibatch", "each", "64KiB", "1GiB"):
        assert simulated("overlap=on", f"buckets={way}").step >= best * (1 - 1e-9), way
    assert len({simulated(f"algorithm={one}", "overlap=off").step for one in collectives.EXACT}) == 3
    assert run.simulate_plan(a_plan(), 64, what_if.read_changes(["noise=0.1"])).waiting > 0.15 * planned.compute
    assert simulated(count=1).exposed == pytest.approx(0), "alone nothing is summed"


@pytest.mark.parametrize("count, strategy", [(16, "sharded"), (16, "servers:4"), (64, "sharded"), (64, "local:8")])
def test_a_strategy_is_priced_as_the_planner_does(count, strategy):
    plan = a_plan()
    size = plan.gradient_bytes
    sizes = tuple(dataclasses.replace(one, update=1e-3) for one in plan.sizes)
    plan = dataclasses.replace(plan, sizes=sizes, update=plan_file.Update(size, size, 2 * size))
    found = simulated(f"strategy={strategy}", count=count, plan=plan)
    priced = strategies.find_price(predict.Predictor(plan), count, strategy).step
    assert found.step == pytest.approx(priced.compute + priced.exposed + priced.small)
    assert (priced.small == 0) == strategy.startswith("local")
    assert found.assumptions[-1].startswith(f"what {strategy} exchanges")
    with pytest.raises(plan_file.PlanFileError, match="no optimizer of Keras"):
        simulated("strategy=sharded", count=count)


def test_servers_and_pulls():
    few, many = (simulated(f"servers={number},async", "ranks-per-host=1") for number in (1, 64))
    assert few.step > many.step > simulated("ranks-per-host=1").compute
    together = simulated("servers=8,sync")
    pulls = {one: simulated("servers=8,sync", f"pull={one}").step for one in what_if.PULLS}
    assert together.step == pulls["default"] > pulls["ibatch"]
    assert simulated("servers=8,sync", "slow=3:2").step > together.step


def test_wrong_words_are_answered_with_the_nearest():
    for word, answer in (
        ("overlp=off", "did you mean overlap"),
        ("buckets=ibtch", "did you mean ibatch"),
        ("algorithm=rings", "did you mean ring"),
        ("link=2us", "link=2us,25GB/s"),
        ("slow=3", "3:1.2"),
        ("noise=3", "noise=0.03"),
        ("servers=0", "servers=NUMBER"),
        ("overlap", "overlap=on|off"),
        ("pull=ibatch", "servers=NUMBER"),
        ("ranks-per-host=0", "NUMBER"),
        ("compression=topk:2", "topk:0.01"),
        ("strategy=async", "strategy=sharded|servers:S|local:H"),
        ("strategy=Async:2", "strategy=sharded|servers:S|local:H"),
        ("slow=3:1.2,4:nan", "3:1.2"),
        ("slow=3:inf", "3:1.2"),
        ("slow=3:1.2,3:2", "3:1.2"),
        ("link=1e999us,1GB/s", "link=2us,25GB/s"),
        ("link=1us,1e999GB/s", "link=2us,25GB/s"),
        ("strategy=servers:2:only", "strategy=sharded|servers:S|local:H"),
    ):
        with pytest.raises(what_if.ImpossibleRequest) as error:
            what_if.read_changes([word])
        assert answer in str(error.value), error.value
    with pytest.raises(what_if.ImpossibleRequest, match="cannot be combined with overlap=off"):
        what_if.read_changes(["strategy=sharded", "overlap=off"])
    with pytest.raises(what_if.ImpossibleRequest, match="link= is given twice"):
        what_if.read_changes(["link=ethernet1", "link=ethernet10"])
    with pytest.raises(what_if.ImpossibleRequest, match="ranks 0 to 63"):
        simulated("slow=64:2")
    with pytest.raises(what_if.ImpossibleRequest, match="all ready at once"):
        simulated("overlap=on", plan=a_plan(overlaps=False))


@pytest.mark.parametrize(
    "word", ["link=1us,100Gb/s", "link=1us,100gb/s", "link=2us,25/s", "link=2us,0GB/s", "buckets=25", "buckets=25mib"]
)
def test_sizes_need_their_exact_unit(word):
    """Networks are sold in bits: 100Gb/s read as bytes would be eight times the link."""
    with pytest.raises(what_if.ImpossibleRequest, match="expected"):
        what_if.read_changes([word])


def test_sizes_and_times_may_have_exponents_and_no_leading_digit():
    assert what_if.read_changes(["link=2us,2.5e9B/s"]).link == what_if.read_changes(["link=.002ms,2.5GB/s"]).link
    assert what_if.read_changes(["buckets=.5MiB"]).buckets == 2**19
    assert what_if.parse_seconds(".5s") == 0.5


def test_a_timeline_is_in_the_format_of_a_run(tmp_path):
    path = tmp_path / "sim.json"
    drawn = trace.Trace(4, 2)
    words = "overlap=on", "buckets=each", "slow=1:1.5", "ranks-per-host=2"
    found = simulated(*words, count=4, steps=2, note=drawn.note_activity)
    drawn.write_file(path)
    rows = json.loads(path.read_text())["traceEvents"]
    assert {row["args"]["name"] for row in rows if row["name"] == "process_name"} == {
        f"rank {rank} (simulated host {rank // 2})" for rank in range(4)
    }
    complete = [row for row in rows if row["ph"] == "X"]
    assert max(row["ts"] + row["dur"] for row in complete) == pytest.approx(2e6 * found.step, rel=1e-3)
    for rank, factor in ((0, 1.0), (1, 1.5)):
        computed = sum(row["dur"] for row in complete if row["pid"] == rank and row["name"] == "compute")
        assert computed == pytest.approx(2e6 * factor * program.make_program(a_plan(), 4).compute, rel=1e-3)
    names = {row["name"] for row in complete if row["tid"] == 0}
    assert {"compute", "wait for other ranks", "wait for sums", "bn/mean", "announce update"} <= names
    buckets_drawn = [row for row in complete if row["pid"] == 0 and row["cat"] == "bucket"]
    assert len(buckets_drawn) == 2 * GRADIENTS and all(row["tid"] == 1 for row in buckets_drawn)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_a_timeline_played_again_gives_its_step_and_with_a_slow_rank_that_of_a_slow_rank(overlap, tmp_path):
    words = f"overlap={overlap}", "ranks-per-host=1", "link=20us,1GB/s", "buckets=64KiB"
    for noise in ("noise=0", "noise=0.1"):
        path = tmp_path / "sim.json"
        drawn = trace.Trace(4, 1)
        found = simulated(*words, noise, count=4, steps=12, note=drawn.note_activity)
        drawn.write_file(path)
        again = replay.replay_timeline(path)
        assert again.steps > 5 and again.replayed == pytest.approx(again.measured, rel=1e-3)
        if noise == "noise=0":
            assert again.measured == pytest.approx(found.step, rel=1e-3)
            slow = simulated(*words, "slow=2:1.5", count=4, steps=12)
            assert replay.replay_timeline(path, {2: 1.5}).replayed == pytest.approx(slow.step, rel=0.01)
    with pytest.raises(what_if.ImpossibleRequest, match="ranks 0 to 3"):
        replay.replay_timeline(path, {4: 2.0})
    rows = json.loads(path.read_text())["traceEvents"]
    # The own file of a rank, which an error leaves, has the number of the rank.
    path.write_text(json.dumps({"traceEvents": [row for row in rows if row["pid"] == 2]}))
    assert replay.replay_timeline(path, {2: 1.5}).replayed > 1.2 * replay.replay_timeline(path).replayed
    with pytest.raises(what_if.ImpossibleRequest, match="ranks 2 to 2"):
        replay.replay_timeline(path, {0: 1.5})
    rows = [row for row in rows if (row["pid"], row.get("cat")) != (1, "collective")]
    path.write_text(json.dumps({"traceEvents": rows}))
    with pytest.raises(what_if.ImpossibleRequest, match="do not have the same collectives"):
        replay.replay_timeline(path)


def test_files_that_cannot_be_replayed_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "other.json"
    bar = {"name": "a", "cat": "other", "ph": "X", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0}
    for rows, why in (
        ([], "do not have the same collectives"),
        ([bar], "has 0 updates; 5 or more are needed"),
        ([{**bar, "name": "wait for sums"}], "do not have the same collectives"),
        ([{"name": "a", "ph": "X", "pid": 0, "tid": 0}], "is not a complete file of MATEX_TIMELINE"),
    ):
        path.write_text(json.dumps({"traceEvents": rows}))
        with pytest.raises(what_if.ImpossibleRequest, match=why):
            replay.replay_timeline(path)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(what_if.ImpossibleRequest, match="other.json is not a complete file"):
        replay.replay_timeline(path)
