"""What a timeline is made of: gaps cut where sums are waited for, and the clocks of several hosts as one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from matex_tf.observe import clocks, timeline
from matex_tf.ops import records

SCRIPT, COMMUNICATION = 0, 1


def recorded(rows):
    """Events from rows of (activity, lane, begin, end), with the label 0."""
    events = np.zeros(len(rows), records.EVENT)
    for event, (activity, lane, begin, end) in zip(events, rows):
        event["start"], event["duration"] = begin, end - begin
        event["activity"], event["lane"] = records.ACTIVITIES.index(activity), lane
    return events, np.stack([events["start"], events["start"] + events["duration"]])


def drawn(rows):
    events, times = recorded(rows)
    return [(lane, name, begin, end) for lane, name, _, begin, end, _ in timeline.list_bars(events, ["w"], times)]


def test_gaps_of_a_step_are_compute():
    rows = [
        ("gap", SCRIPT, 0, 10),
        ("update", SCRIPT, 10, 20),
        ("gap", SCRIPT, 20, 30),
        ("collective", SCRIPT, 30, 31),
        ("gap", SCRIPT, 31, 40),
        ("update", SCRIPT, 40, 50),
        ("gap", SCRIPT, 50, 60),
        ("between steps", SCRIPT, 55, 55),
        ("update", SCRIPT, 60, 70),
        ("gap", SCRIPT, 70, 80),
        ("message", SCRIPT, 80, 90),
    ]
    gaps = [one for one in drawn(rows) if one[1] in ("compute", "between steps")]
    assert gaps == [
        (0, "between steps", 0, 10),
        (0, "compute", 20, 30),
        (0, "compute", 31, 40),
        (0, "between steps", 50, 60),
        (0, "between steps", 70, 80),
    ]


@pytest.mark.parametrize(
    "exposed, waits",
    [
        ([(12, 18)], [(12, 18)]),
        ([(10, 20)], [(10, 20)]),
        ([(5, 12), (18, 25)], [(10, 12), (18, 20)]),
        ([(5, 25)], [(10, 20)]),
        ([(2, 8), (21, 22)], []),
    ],
)
def test_gaps_are_cut_where_sums_are_waited_for(exposed, waits):
    rows = [
        ("announcement", SCRIPT, 0, 10),
        ("gap", SCRIPT, 10, 20),
        ("announcement", SCRIPT, 20, 30),
        *(("exposed", COMMUNICATION, *one) for one in exposed),
    ]
    found = drawn(rows)
    assert [one[2:] for one in found if one[1] == "wait for sums"] == waits
    compute = [one[2:] for one in found if one[1] == "compute"]
    assert sum(end - begin for begin, end in compute + waits) == 10
    assert all(begin < end for begin, end in compute + waits)
    assert all(one[0] == SCRIPT for one in found)


def test_a_part_is_json_with_microseconds():
    events, times = recorded([("transfer", COMMUNICATION, 1500, 4000), ("update", COMMUNICATION, 1000, 5001)])
    events["bytes"][0] = 64
    rows = json.loads("[" + timeline.format_part(events, ['of "quoted" é'], 3, "node", times) + "]")
    assert [row["args"]["name"] for row in rows if row["name"].endswith("_name")] == [
        "rank 3 (node)",
        "script",
        "communication",
        "new weights",
    ]
    update, transfer = rows[-2:]
    assert update == {
        "name": 'of "quoted" é', "cat": "update", "ph": "X", "pid": 3, "tid": 1, "ts": 1.0, "dur": 4.001
    }  # fmt: skip
    assert (transfer["ts"], transfer["dur"], transfer["args"]) == (1.5, 2.5, {"bytes": 64})


def test_the_offset_of_a_clock_is_within_its_error():
    random = np.random.default_rng(0)
    for _ in range(100):
        ahead, now, rounds = int(random.integers(-(10**12), 10**12)), 10**9, []
        for _ in range(20):
            there, back = random.integers(10_000, 1_000_000, 2).tolist()
            rounds.append((now, now + there + ahead, now + there + back))
            now += there + back + 1000
        found = clocks.estimate_offset(rounds)
        assert abs(found.ahead - ahead) <= found.error
        assert found.error == min((received - sent + 1) // 2 for sent, _, received in rounds)


def test_clocks_that_part_are_brought_together():
    start, end = clocks.Offset(1000, 500_000, 10), clocks.Offset(3_601_000_000_000, 36_500_000, 10)
    by_theirs = np.array([1000 + 500_000, 3_601_000_000_000 + 36_500_000])
    np.testing.assert_array_equal(clocks.convert_to_rank_0_time(by_theirs, start, end), [1000, 3_601_000_000_000])
    np.testing.assert_array_equal(clocks.convert_to_rank_0_time(by_theirs, start, start), by_theirs - 500_000)
    np.testing.assert_array_equal(clocks.convert_to_rank_0_time(by_theirs, clocks.Offset(), clocks.Offset()), by_theirs)
