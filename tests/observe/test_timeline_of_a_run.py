"""A run with a timeline and a profile: both are there at the end, and tell the same; a run that fails leaves parts."""

import json
import statistics

import launch

SCRIPT = """
import numpy as np
import keras
import sys

random = np.random.default_rng(0)
x, y = random.standard_normal((640, 16)), random.standard_normal((640, 1))
model = keras.Sequential([
    keras.Input((16,)), keras.layers.Dense(64, activation="tanh"), keras.layers.BatchNormalization(),
    keras.layers.Dense(1),
])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=2, validation_split=0.1, verbose=0)
if "fail" in sys.argv:
    raise RuntimeError("the end comes early")
print("trained")
"""
COLUMNS = "steps step compute waiting exposed other hidden".split()


def complete_events(path):
    rows = json.loads(path.read_text())["traceEvents"]
    assert {row["ph"] for row in rows} == {"M", "X"}
    return rows, [row for row in rows if row["ph"] == "X"]


def assert_in_order_and_nested(rows):
    open_until = []
    for before, row in zip([rows[0], *rows], rows):
        begin, end = round(row["ts"] * 1000), round((row["ts"] + row["dur"]) * 1000)
        assert before["ts"] <= row["ts"]
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1], row
        open_until.append(end)


def of_steps(rows, place):
    """The milliseconds of a step of one rank, after its first three updates, as the columns of the table."""
    script = [row for row in rows if row["tid"] == 0]
    ends = [row["ts"] + row["dur"] for row in script if row["name"] in (place, f"announce {place}")]
    steps = updates = 0
    sums = dict.fromkeys(("compute", "other"), 0.0)
    for since, until in zip(ends[2:], ends[3:]):
        updates += 1
        inside = [row for row in script if since - 0.01 <= row["ts"] < until - 0.01]
        if any(row["name"] == "between steps" for row in inside):
            continue
        steps += 1
        waits = [row for row in inside if row["name"] == "wait for other ranks"]
        collectives = [row for row in inside if row["cat"] in ("collective", "allgather", "broadcast", "message")]
        for row in collectives:
            sums["other"] += row["dur"] - sum(
                one["dur"] for one in waits if row["ts"] <= one["ts"] < row["ts"] + row["dur"]
            )
        sums["compute"] += sum(row["dur"] for row in inside if row["name"] == "compute")
    return steps, {name: value / steps / 1000 for name, value in sums.items()}


def test_the_timeline_and_the_table_tell_the_same(tmp_path):
    """With overlapped updates: the engine's tests have those that are not, and new weights that come later."""
    path = tmp_path / "trace.json"
    env = {"MATEX_TIMELINE": str(path), "MATEX_PROFILE": "1", "MATEX_OVERLAP": "on"}
    env |= {"MATEX_ALGORITHM": "mpi"}
    result = launch.run(2, SCRIPT, env=env).check()
    assert result.stdout.strip() == "trained" and "is in " + str(path) in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    rows, events = complete_events(path)
    for rank in range(2):
        names = {row["name"]: row["args"] for row in rows if row["ph"] == "M" and row["pid"] == rank}
        assert names["process_name"]["name"].startswith(f"rank {rank} (")
        threads = [row["args"]["name"] for row in rows if row["name"] == "thread_name" and row["pid"] == rank]
        assert threads == ["script", "communication", "new weights"]
        for thread in range(2):  # nothing comes in that of new weights
            assert_in_order_and_nested([row for row in events if (row["pid"], row["tid"]) == (rank, thread)])
    (head, line) = [text for text in result.stderr.splitlines() if text.startswith(("update ", "the step "))]
    assert head.split()[1:8] == COLUMNS
    place, figures = line.split(" more", 1)
    place += " more"
    table = dict(zip(COLUMNS, map(float, figures.split()[:7])))
    both = [of_steps([row for row in events if row["pid"] == rank], place) for rank in range(2)]
    assert {steps for steps, _ in both} == {table["steps"]} and table["steps"] > 50
    for name in ("compute", "other"):
        assert abs(statistics.mean(sums[name] for _, sums in both) - table[name]) < 0.02, (name, both, table)
    parts = ("compute", "waiting", "exposed", "other")
    assert abs(sum(table[name] for name in parts) - table["step"]) < 0.03


def test_a_run_that_fails_leaves_a_part(tmp_path):
    result = launch.run(2, SCRIPT, "fail", env={"MATEX_TIMELINE": str(tmp_path / "trace.json")})
    assert result.returncode == 1 and "the end comes early" in result.stderr
    _, events = complete_events(tmp_path / "trace.rank-0.json")
    assert_in_order_and_nested(events)
    assert sum(row["cat"] == "update" for row in events) == 72
