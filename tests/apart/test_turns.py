"""`MATEX_STRATEGY=async`: one rank trains each batch, once; between epochs all ranks have equal, complete values."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch
from matex_tf.apart import rescue, store, values
from matex_tf.world import world

HERE = Path(__file__).parent


def trained(ranks, how, strategy, folder):
    folder.mkdir()
    env = {**launch.ALL_FILES, "MATEX_STRATEGY": strategy}
    result = launch.run(ranks, HERE / "turns_case.py", folder, how, env=env, timeout=300)
    return [dict(np.load(path)) for path in sorted(folder.glob("rank-*.npz"))], result


@pytest.mark.timeout(700)
def test_one_at_a_time_is_the_script_alone(tmp_path):
    (alone,), _ = trained(1, "one at a time", "async:0", tmp_path / "alone")
    ranks, result = trained(2, "one at a time", "async:0", tmp_path / "ranks")
    said = result.check().stderr
    assert len(ranks) == 2
    for found in ranks:
        assert set(found) == set(alone)
        assert {name for name in alone if not close(found[name], alone[name])} == set()
    assert said.count("runs as allreduce") == 1, said
    assert "fit on 'scales' runs as allreduce: it changes '" in said and "' in some steps only" in said
    assert "in turn, one at a time; the result is that of the script alone, but for" in said, said
    assert "statistical" not in said
    assert "asynchronous: 14 updates; staleness 0.00 on average, 0 at the 99th percentile, at most 0; " in said, said


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_each_batch_is_trained_once_until_a_rank_is_killed(ranks, tmp_path):
    found, result = trained(ranks, "free", "async", tmp_path / "ranks")
    said = result.stderr
    assert result.returncode in (128 + signal.SIGKILL, signal.SIGKILL), result.output
    assert len(found) == ranks, said
    for other in found[1:]:
        assert [name for name in other if other[name].tobytes() != found[0][name].tobytes()] == []
    seen = {name.partition("|")[0]: value for name, value in found[0].items() if value.dtype == "int64" and value.ndim}
    assert set(seen["arrays"]) == {3} and set(seen["again"]) == {5} and set(seen["steps"]) == {4}
    assert set(seen["stopped"] - seen["steps"]) == {0, 1} and set(seen["caught"] - seen["stopped"]) <= {1, 2}
    iterations = {name: value for name, value in found[0].items() if value.dtype == "int64" and not value.ndim}
    assert iterations["arrays|5"] == 45 and iterations["steps|5"] == 60, iterations
    assert found[0]["arrays|loss"][-1] < found[0]["arrays|loss"][0]
    np.testing.assert_allclose(found[0]["saved"], found[0]["arrays|val_loss"][-1], rtol=1e-5)
    assert f"asynchronous: {ranks} ranks, whole batches in turn, at most 4 ahead" in said
    assert "asynchronous: 45 updates" in said
    assert "asynchronous: 30 updates" in said  # though another thread trains
    assert found[0]["refused"]
    assert iterations["own|2"] == 15 and np.isclose(found[0]["own|3"], 0.1 / 7 / 10), found[0]
    assert len(re.findall(r"assigns a new value to '[^']*remembers/last'", said)) == 1, said
    assert "fit on 'probe' runs as allreduce: it is called within another" in said
    assert "fit on 'any_width'" not in said, said
    assert (
        said.count("runs as allreduce: only fit trains so") == 1 and "see different rows" not in said
    )  # train_on_batch


@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "ranks, how, losses",
    [
        (3, "--elastic", ("1:1:1:seen", "0:1:0:update")),
        pytest.param(2, "--restarts=2", ("1:1:3:seen",), marks=pytest.mark.more),
        pytest.param(2, "--restarts=2", ("1:1:3:seen", "0:1:1:update"), marks=pytest.mark.more),
        pytest.param(3, "--elastic", ("0:0:0:begin", "2:2:3:end"), marks=pytest.mark.more),
        pytest.param(3, "--elastic", ("2:0:0:update", "1:1:all:epoch"), marks=pytest.mark.more),
        pytest.param(3, "--elastic", ("0:2:all:epoch", "1:0:1:seen"), marks=pytest.mark.more),
        pytest.param(3, "--restarts=2", ("2:2:2:end", "1:0:0:update"), marks=pytest.mark.more),
    ],
)
def test_each_batch_is_trained_once_though_ranks_are_lost(ranks, how, losses, tmp_path):
    """With --elastic the remaining ranks continue; with --restarts all ranks restart from a state within an epoch."""
    again = how != "--elastic"
    env = {**launch.ALL_FILES, "MATEX_STATE": str(tmp_path / "state"), "MATEX_STRATEGY": "async"}
    env["MATEX_SAVE_SECONDS"] = "0.01" if again else "0"
    if not again:  # watched in the first call of fit only
        env |= {"MATEX_STALL_SECONDS": "0", "MATEX_ABORT_SECONDS": "0"}
    result = launch.matex_run(ranks, how, HERE / "turns_lost_case.py", tmp_path, *losses, env=env).check()
    left = {str(rank) for rank in range(ranks)} - ({loss[0] for loss in losses} if not again else set())
    found = dict(np.load(tmp_path / f"rank-{left.pop()}.npz"))
    wanted = {name.partition("|")[2]: value for name, value in found.items() if name.startswith("allreduce|")}
    for loss in losses:
        name = loss.replace(":", "-")
        assert (tmp_path / name).exists(), result.output
        got = {key: found[f"{name}|{key}"] for key in wanted}
        counted = [key for key in wanted if wanted[key].dtype == "int64" or key.endswith("rows")]
        assert len(counted) == 4 and all(np.array_equal(got[key], wanted[key]) for key in counted), result.output
        if not name.endswith("update"):
            assert [key for key in wanted if not close(got[key], wanted[key])] == [], result.output
    said = result.stderr
    assert "fit on 'small' runs as allreduce: an epoch has 1 batches" in said
    assert said.count("runs as allreduce") == 1, said  # a restart skips the calls of fit that had ended
    assert found["ended"] == 1 + 13 and 4 <= found["stopped"] <= 4 + ranks, found
    if again:
        assert said.count("; restart ") == len(losses), result.output
        assert re.search(r"saved at epoch \d, step [1-9]", said), result.output
    else:
        assert said.count("is lost; ") == 2 and "restart 1 of" not in said, result.output
    if "seen" in losses[0] and not again:
        # Rank 0 waits for the older batch, which the lost rank had, or the rank that has taken it over.
        waits = r"has waited at a batch, .* rank [12] has trained an older one .* for:\n  rank 2 \(.* in stand_still:"
        assert re.search(rf"rank 0 \(\S+\) {waits}", said), said
        assert "does not answer" not in said, said
        assert re.search(r"another rank trains its batch, \d+ of the epoch", said), result.output


def test_a_learning_rate_is_that_of_the_newest_batch():
    import tensorflow as tf

    rate = tf.Variable(0.5)
    own = values.OwnValues([rate])
    own.keep_values(12)
    rate.assign(0.25)
    own.assign_values(own.keep_values(11))  # a lost rank's, which came later
    assert rate == 0.5
    rate.assign(0.125)
    own.assign_values(own.keep_values(13))
    assert rate == 0.125


def test_what_lost_ranks_have_added_to_metrics_counts_once_also_if_the_rank_that_counted_it_is_lost(monkeypatch):
    import tensorflow as tf

    memory = np.zeros(4096, np.uint8)
    monkeypatch.setattr(store, "map_bytes", lambda size: memory[:size])
    monkeypatch.setattr(store, "is_lost", lambda rank: False)
    monkeypatch.setattr(store, "read_version", lambda rank: 0)

    def be_rank(rank, size):
        monkeypatch.setattr(rescue.world, "get_world", lambda: world.World(rank=rank, size=size))

    rescues = {}
    for rank in range(4):
        be_rank(rank, 4)
        metric = tf.Variable(0.0)
        mine = rescue.Rescue(values.Sums([metric]))
        mine.watch_losses(turns := type("", (), {})())
        mine.begin_turns(0)
        metric.assign_add(2.0**rank)
        mine.keep_sums()
        mine.is_meeting = True
        rescues[rank] = mine, metric, turns
    remaining = [0, 1, 2, 3]
    for lost in (2, 0):
        survivors = [index for index, rank in enumerate(remaining) if rank != lost]
        monkeypatch.setattr(rescue.membership, "survivors", survivors)
        before, remaining = remaining, [remaining[index] for index in survivors]
        for number, rank in enumerate(remaining):
            be_rank(number, len(remaining))
            rescues[rank][0]._handle_loss(number == 0 < before.index(rank))
            assert rescues[rank][2].is_outdated
        assert sum(float(rescues[rank][1]) for rank in remaining) == 1 + 2 + 4 + 8
    for mine, _, _ in rescues.values():
        mine.close_turns()
