"""The engine's recorder: nothing is recorded while it is off; events nest, and totals are sums of events."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from matex_tf import errors, ops, settings
from matex_tf.observe import clocks, timeline
from matex_tf.ops import records
from matex_tf.runtime import objects, shutdown

pytestmark = pytest.mark.mpi

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
FIRST = 3  # the first updates of a place, which the totals do not include
NUMBER = {name: number for number, name in enumerate(records.ACTIVITIES)}


def update(engine, place="a test"):
    arrays = [np.ones(70_000, np.float32), np.ones(10, np.float32), np.ones((5, 5), np.float32)]
    _, error = engine.reduce(arrays, ["kernel", "bias", "scale"], 1.0, place)
    assert error == ""


def only(events, *names):
    return events[np.isin(events["activity"], [NUMBER[name] for name in names])]


def assert_nested(spans):
    """Two spans, as (begin, end), overlap only if one contains the other."""
    open_until = []
    for begin, end in sorted(spans, key=lambda one: (one[0], -one[1])):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert end >= begin and (not open_until or end <= open_until[-1]), (begin, end, open_until)
        open_until.append(end)


def test_nothing_is_recorded_while_off(engine):
    update(engine)
    engine.c.matex_between_steps()
    assert len(records.read_events(engine.c)[0]) == 0 and records.read_totals(engine.c) == []


def test_totals_are_kept_without_events(engine):
    engine.c.matex_record(records.TOTALS, 1000)
    for _ in range(FIRST + 2):
        update(engine)
    assert len(records.read_events(engine.c)[0]) == 0
    assert [one.updates for one in records.read_totals(engine.c)] == [2]


def test_events_of_updates(make_engine):
    engine = make_engine(chunk_bytes=100_000, fuse_bytes=1000)
    engine.c.matex_record(records.EVENTS, 1000)
    count = FIRST + 4
    for _ in range(count):
        update(engine)
        engine.meet(2, 7, "another collective")
    events, dropped = records.read_events(engine.c)
    labels = records.read_event_labels(engine.c)
    assert dropped == 0
    assert_nested(zip(events["start"], events["start"] + events["duration"]))
    named = {name: [labels[label] for label in only(events, name)["label"]] for name in ("update", "bucket")}
    assert named["update"] == ["a test: kernel and 2 more"] * count
    buckets = ["kernel from element 0", "kernel from element 25000", "kernel from element 50000", "bias and 1 more"]
    assert named["bucket"] == buckets * count
    assert len(only(events, "transfer")) == 4 * count and len(only(events, "copy out")) == count
    assert len(only(events, "meet")) == 2 * count * (SIZE > 1)
    assert len(only(events, "gap")) == 2 * count - 1

    # The totals begin at the end of the last ignored update.
    updates = only(events, "update")
    since = (updates["start"] + updates["duration"])[FIRST - 1]
    until = (updates["start"] + updates["duration"])[-1]
    events = events[(events["start"] >= since) & (events["start"] + events["duration"] <= until)]
    (totals,) = records.read_totals(engine.c)
    assert totals.place == "a test: kernel and 2 more"
    assert (totals.updates, totals.steps, totals.transfers) == (4, 4, 16)
    assert totals.bytes == 4 * 4 * 70_035 == only(events, "transfer")["bytes"].sum()
    assert totals.transfer == only(events, "transfer")["duration"].sum()
    assert totals.copy == only(events, "copy in", "copy out")["duration"].sum()
    assert totals.compute == only(events, "gap")["duration"].sum()
    assert totals.meet == only(events, "meet")["duration"].sum()
    inside = only(events, "update")["duration"].sum() + only(events, "collective")["duration"].sum()
    assert totals.meet + totals.exposed + totals.collectives == inside
    assert totals.exposed >= totals.transfer + totals.copy and totals.exposed_wait == 0


def test_the_kind_of_a_collective_and_the_bytes_of_this_rank_are_recorded():
    records.set_recording(records.EVENTS, 100)
    before = len(records.read_events()[0])
    ops.allgather(tf.ones((RANK + 1, 3)), name="rows")
    ops.broadcast(tf.ones(5), name="one")
    ops.allreduce(tf.ones(7), name="sum")
    ops.barrier("meeting")
    objects.allgather(b"x" * 1000, "a message")
    found = records.read_events()[0][before:]
    records.set_recording(0)
    kinds = ("allgather", "broadcast", "collective", "message")
    seen = [(records.ACTIVITIES[one["activity"]], int(one["bytes"])) for one in only(found, *kinds)]
    if SIZE > 1:
        assert seen[:4] == [("allgather", 12 * (RANK + 1)), ("broadcast", 20), ("collective", 28), ("collective", 0)]
        assert [kind for kind, _ in seen[4:]] == ["message"] and 1000 < seen[4][1] < 1100


def test_what_lies_between_steps_is_in_no_step(engine):
    engine.c.matex_record(records.EVENTS, 1000)
    for turn in range(FIRST + 6):
        if turn % 3 == 0:
            engine.c.matex_between_steps()
        update(engine)
    (totals,) = records.read_totals(engine.c)
    assert (totals.updates, totals.steps) == (6, 4)
    events, _ = records.read_events(engine.c)
    times = np.stack([events["start"], events["start"] + events["duration"]])
    drawn = [one[1] for one in timeline.list_bars(events, records.read_event_labels(engine.c), times)]
    assert (drawn.count("compute"), drawn.count("between steps")) == (6, 2)


def test_places_are_told_apart(engine):
    engine.c.matex_record(records.TOTALS, 0)
    for _ in range(FIRST + 2):
        update(engine, "one")
        update(engine, "other")
    assert [one.place for one in records.read_totals(engine.c)] == [
        "one: kernel and 2 more",
        "other: kernel and 2 more",
    ]
    assert [one.steps for one in records.read_totals(engine.c)] == [2, 2]


def test_the_last_events_are_kept(engine):
    engine.c.matex_record(records.EVENTS, 10)
    for turn in range(30):
        assert engine.meet(6, turn, f"message {turn}") == ""
    events, dropped = records.read_events(engine.c)
    assert len(events) == 10 and dropped == (89 if SIZE > 1 else 59) - 10
    labels = records.read_event_labels(engine.c)
    shown = [labels[label] for label in only(events, "message")["label"]]
    assert shown == [f"message {turn}" for turn in range(30)][-len(shown) :]
    assert np.all(np.diff(events["start"] + events["duration"]) >= 0)


def test_a_meeting_that_fails_is_recorded(make_engine):
    engine = make_engine()
    engine.c.matex_record(records.EVENTS, 100)
    if SIZE > 1:
        assert "at different places" in engine.meet(6, RANK, f"message of rank {RANK}")
        (event,) = only(records.read_events(engine.c)[0], "message")
        assert records.read_event_labels(engine.c)[event["label"]] == f"message of rank {RANK}"


def test_the_probe_of_the_link(engine):
    if SIZE == 1:
        return
    for overlapped in (False, True):
        start_up, byte = ctypes.c_double(), ctypes.c_double()
        assert engine.c.matex_link(overlapped, ctypes.byref(start_up), ctypes.byref(byte)) == 0
        everyone = MPI.COMM_WORLD.allgather((start_up.value, byte.value))
        assert len(set(everyone)) == 1 and start_up.value > 0 and byte.value >= 0


@pytest.mark.parametrize("parts", [1, 2])
def test_overlapped_updates(monkeypatch, parts):
    """The communication thread has its own lane. The parts of an update count as one update."""
    if SIZE == 1:
        return
    monkeypatch.setattr(settings.get_settings(), "overlap", "on")
    place, names = f"a record of {parts}", ["first", "second", "none"]

    @tf.function
    def step(x, y):
        product = tf.linalg.matmul(y, y)
        if parts == 1:
            return ops.reduce_gradients([x, product[0], y[:0]], names, 1.0, place)
        part_of = "first and 2 more"
        first = ops.reduce_gradients([x], names[:1], 1.0, place, part_of=part_of, has_more=True)
        product = ops.allreduce(product, "mean")
        return first + ops.reduce_gradients([product[0], y[:0]], names[1:], 1.0, place, part_of=part_of)

    for _ in range(2):
        step(tf.ones([300_000]), tf.ones([300, 300]))
    records.set_recording(records.EVENTS, 1 << 14)
    before = len(records.read_events()[0])  # events of the other case
    count = FIRST + 12
    for _ in range(count):
        step(tf.ones([300_000]), tf.ones([300, 300]))
    ops.barrier()  # the last update has ended on all ranks
    events, dropped = records.read_events()
    records.set_recording(0)
    assert dropped == 0
    events = events[before:]
    place += ": first and 2 more"
    (totals,) = [one for one in records.read_totals() if one.place == place]
    assert (totals.updates, totals.steps) == (count - FIRST, count - FIRST)
    assert totals.bytes == totals.updates * 4 * 300_300
    labels = records.read_event_labels()
    mine = events[events["lane"] == records.LANES.index("communication")]
    assert len(only(mine, "exposed")) == count and len(only(mine, "choice")) == parts
    exposed = only(mine, "exposed")["duration"][FIRST:].sum()
    assert totals.exposed + totals.exposed_wait == exposed and totals.exposed_wait >= 0
    assert len(only(events[events["lane"] == 0], "announcement")) == parts * count

    times = np.stack([events["start"], events["start"] + events["duration"]]) - events["start"].min()
    drawn = list(timeline.list_bars(events, labels, times))
    for lane in (0, 1):
        assert_nested([one[3:5] for one in drawn if one[0] == lane])
    text = timeline.format_part(events, labels, RANK, "host", times)
    rows = [row for row in json.loads(f"[{text}]") if row["ph"] == "X"]
    assert {row["name"] for row in rows} >= {place, f"announce {place}", "transfer", "compute", "wait for sums"}
    assert len(rows) == len(drawn)


def test_a_timeline_that_cannot_be_written_is_an_error_of_all_ranks(monkeypatch, tmp_path):
    before = list(shutdown.at_end)
    monkeypatch.setattr(settings.get_settings(), "timeline", "/no/such/folder/trace.json")
    with pytest.raises(errors.SetupError, match="MATEX_TIMELINE=/no/such/"):
        timeline.start_timeline()
    monkeypatch.setattr(settings.get_settings(), "timeline", "/proc/trace.json")
    with pytest.raises(errors.SetupError, match="MATEX_TIMELINE="):
        timeline.start_timeline()
    assert shutdown.at_end == before


def test_clocks_of_one_host_are_one():
    if SIZE > 1:
        assert clocks.Clocks().measure_offsets() == [clocks.Offset()] * SIZE


def test_clocks_that_may_differ_are_asked(monkeypatch):
    """In this test all ranks read one clock, but believe to have two: the offset is 0 within its error."""
    if SIZE == 1:
        return
    monkeypatch.setattr(clocks, "_read_clock_id", lambda: f"clock {RANK % 2}")
    found = clocks.Clocks().measure_offsets()
    assert len(set(MPI.COMM_WORLD.allgather(tuple(found)))) == 1
    for rank, offset in enumerate(found):
        assert (offset == clocks.Offset()) == (rank % 2 == 0)
        assert offset.at >= 0 and abs(offset.ahead) <= offset.error
