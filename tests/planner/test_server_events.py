"""Parameter servers, event by event, against what can be said of them without events."""

from __future__ import annotations

import itertools
import math

import pytest

from matex_tf.planner import queueing
from matex_tf.planner.events import Events, Station
from matex_tf.planner.papers import ibatch
from matex_tf.planner.simulator import servers
from matex_tf.planner.simulator.ranks import Disturbance

MOST = {0.5: 0.02, 0.1: 0.06}
"""How far events may be from the exact model, by the jitter of the computation."""


def make_step_work(compute, transfer):
    """`compute` seconds, then one transfer of `transfer` seconds."""
    return servers.Work([0.0], [compute], 0.0, transfer)


def compute_throughput(run):
    """Steps a second of all workers, from a tenth of the time on until the first worker is done."""
    stop = min(ends[-1] for ends in run.ends)
    start = 0.1 * stop
    return sum(start < end <= stop for ends in run.ends for end in ends) / (stop - start)


@pytest.mark.parametrize("noise", MOST)
def test_events_give_the_exact_throughput(noise):
    for workers, count, share in itertools.product((2, 8, 32), (1, 3, 8), (0.05, 0.2, 0.7)):
        work = make_step_work(1 - share, share)
        run = servers.simulate_servers(workers, count, work, max(100, 4000 // workers), disturbance=Disturbance(noise))
        exact = queueing.compute_throughput(workers, count, 1 - share, share)
        assert compute_throughput(run) == pytest.approx(exact, rel=MOST[noise]), (workers, count, share)


def test_a_station_shares_evenly_and_no_one_is_served_faster_than_alone():
    ends = {}
    events = Events()
    station = Station(events, 1.0)
    for name, start, work in (("a", 0.0, 2.0), ("b", 1.0, 2.0), ("c", 9.0, 1.0)):
        events.schedule(start, station.begin_job, work, lambda name=name: ends.__setitem__(name, events.now))
    events.run_events()
    # a alone for 1 s, then both at half speed until a's last second is over at 3; b then alone.
    assert ends == pytest.approx({"a": 3.0, "b": 4.0, "c": 10.0})


def test_a_station_wider_than_its_customers_serves_each_at_full_speed():
    run = servers.simulate_servers(3, 3.0, make_step_work(1.0, 0.5), 10)
    assert all(later - end == pytest.approx(1.5) for ends in run.ends for end, later in itertools.pairwise(ends))


def test_steps_together_transfer_together():
    slow = Disturbance(slow={2: 1.2})
    run = servers.simulate_servers(4, 2.0, make_step_work(1.0, 0.5), 10, synchronous=True, disturbance=slow)
    # Workers that end early transfer while the slow one still computes.
    assert run.compute_step() == pytest.approx(run.ends[2][1] - run.ends[2][0])
    assert all(ends[0] <= run.ends[2][0] for ends in run.ends), "the slow worker is last"
    lone = servers.simulate_servers(4, 4.0, make_step_work(1.0, 0.5), 10, synchronous=True, disturbance=slow)
    assert lone.compute_step() == pytest.approx(1.7)


def test_pulls_in_batches_end_as_the_recursion_says():
    layers = ibatch.Layers([0.3, 0.1, 0.4, 0.2], [0.1, 0.5, 0.1, 0.3], 0.05)
    for plan in (ibatch.plan_whole(layers), ibatch.plan_by_layer(layers), ibatch.plan_greedy(layers), (0, 1, 4)):
        pulls, forward = servers.sum_batches(layers.transfer, plan), servers.sum_batches(layers.compute, plan)
        run = servers.simulate_servers(
            1, 1.0, servers.Work(pulls, forward, 1.0, 0.0, layers.start_up), 3, synchronous=True
        )
        assert run.ends[0][0] == pytest.approx(ibatch.compute_end(layers, plan) + 1.0), plan


def test_the_same_seed_gives_the_same_run_and_noise_costs_time_in_step():
    work = make_step_work(1.0, 0.1)
    noise = Disturbance(0.1)
    runs = [servers.simulate_servers(8, 8.0, work, 50, True, noise, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert 1.1 < runs[0].compute_step() < 1.5 and not math.isnan(compute_throughput(runs[0]))
