"""`MATEX_STRATEGY=sharded` gives the result of `allreduce`; an update that cannot be sharded is reported."""

import re
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch
from matex_tf import errors, settings
from matex_tf.servers.pieces import owners, partition
from matex_tf.world import world

HERE = Path(__file__).parent
ADDED_UP = {"Lamb", "clipped", "Muon", "Adafactor"}
"""Optimizers that sum over the entries of a variable. With pieces the order of additions is another one."""


def both(ranks, script, *arguments, folder, **more):
    """The files that ranks store with `allreduce` and with `sharded`, and the messages with `sharded`."""
    results = []
    for strategy in ("allreduce", "sharded"):
        place = folder / strategy
        place.mkdir()
        env = {**launch.ALL_FILES, "MATEX_STRATEGY": strategy, **more}
        said = launch.run(ranks, script, place, *arguments, env=env, timeout=560).check().stderr
        results.append([dict(np.load(path)) for path in sorted(place.glob("rank-*.npz"))])
    return *results, said


def differing(wanted, got):
    """The names of arrays whose bits differ between `wanted` and `got` on some rank."""
    assert [set(one) for one in wanted] == [set(one) for one in got]
    return {
        name
        for want, have in zip(wanted, got)
        for name in want
        if not name.endswith("|bytes") and want[name].tobytes() != have[name].tobytes()
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "ranks, per_node, package, dtype, few",
    [
        (2, 2, "keras", "float32", ["Lamb", "clipped", "ScheduleFreeAdamW"]),
        pytest.param(2, 2, "tf_keras", "float64", ["Nadam", "momentum", "average"], marks=pytest.mark.more),
        *(
            pytest.param(ranks, per_node, *case, [], marks=pytest.mark.more)
            for ranks, per_node in ((2, 2), (3, 3), (2, 1), (3, 1))
            for case in (("keras", "float32"), ("tf_keras", "float64"))
        ),
    ],
)
def test_optimizers_give_the_same(ranks, per_node, package, dtype, few, tmp_path):
    """All optimizers of Keras, or a `few`: one of each kind of update."""
    pytest.importorskip(package)
    more = {"MATEX_RANKS_PER_NODE": str(per_node)}
    wanted, got, said = both(ranks, HERE / "optimizers_case.py", package, dtype, *few, folder=tmp_path, **more)
    if dtype == "float32" and (ranks == 2 or per_node > 1):  # else numbers are added up in another order
        assert {name for name in differing(wanted, got) if name.partition("|")[0] not in ADDED_UP} == set()
    # TensorFlow may compute products of whole variables, whose shapes are known, in another order than of pieces.
    tolerance = 1e-5 if dtype == "float32" else 1e-10
    off = {
        name for want, have in zip(wanted, got) for name in want
        if not name.endswith("|bytes") and not close(have[name], want[name], tolerance)
    }  # fmt: skip
    assert off == set()
    for have in got[1:]:
        assert differing(got[:1], [have]) == set()
    names = {name.partition("|")[0] for name in got[0]}
    held = {name: (int(wanted[0][f"{name}|bytes"]), int(got[0][f"{name}|bytes"])) for name in names}
    have_slots = {name for name, (before, _) in held.items() if before > 100}
    assert {name for name in have_slots if not held[name][1] < held[name][0]} == set(), said
    assert "runs as allreduce" not in said, said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("per_node", ["2", pytest.param("1", marks=pytest.mark.more)])
def test_readers_find_whole_variables(which, per_node, tmp_path):
    more = {"MATEX_OUTPUT": "first", "MATEX_OVERLAP": "on", "MATEX_RANKS_PER_NODE": per_node}
    wanted, got, said = both(2, HERE / "readers_case.py", which, folder=tmp_path, **more)
    assert {name for name in differing(wanted, got) if not name.startswith("figures")} == set()
    assert all(close(have[name], want[name], 1e-5) for want, have in zip(wanted, got) for name in want)
    assert "it is called outside of a tf.function" in said
    assert said.count("'Adam' runs as allreduce: it is one of tf.compat.v1") == 1, said
    assert "cannot be sharded" not in said, said


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "serving, who",
    [
        (1, "2 (.*), which only serves: 2 of 3"),
        pytest.param(2, "1 (.*), 2 (.*), which only serve: 1 of 3", marks=pytest.mark.more),
    ],
)
def test_some_ranks_own_the_pieces(tmp_path, serving, who):
    env = {"MATEX_STRATEGY": "servers:auto", "MATEX_RANKS_PER_NODE": "2"}
    only = f"servers:{serving}:only"
    words = (HERE / "owners_case.py", tmp_path, "servers:2", "servers:auto", only)
    said = launch.run(3, *words, env=env, timeout=300).check().stderr
    assert "MATEX_STRATEGY=servers:2: the optimizer's variables are on rank 0, 2" in said
    assert re.search("MATEX_STRATEGY=servers:auto: S = 3: .* on each of the 3 ranks.*; with S = 1 .* assumed", said)
    found = dict(np.load(tmp_path / "found.npz"))
    assert found["servers:2|values"].tobytes() == found["allreduce|values"].tobytes()
    assert found["servers:auto|values"].tobytes() == found["allreduce|values"].tobytes()
    # Equal nodes: each rank owns a piece.
    assert all(one > 0 for one in found["servers:auto|held"])
    assert sum(found["servers:auto|held"]) == sum(found["servers:2|held"])
    assert (found["servers:2|made"] == found["servers:2|held"]).all()  # slots are in pieces from their creation on
    first, none, last = found["servers:2|held"]
    assert none == 0 and first + last == 2 * (6 * 64 + 64 + 64 + 1)  # Adam has two slots for each weight
    assert abs(first - last) * 8 < 2 * 2 * partition.ALIGNED
    assert re.search(f"MATEX_STRATEGY={only}: the optimizer's variables are on rank {who} ranks train", said)
    assert all(close(found[f"{only}|{of}"], found[f"allreduce|{of}"]) for of in ("values", "figures"))
    train, serve = np.split(found[f"{only}|rows"], [3 - serving])
    assert train.min() > 0 and not serve.any() and (train.sum(0) == found["allreduce|rows"].sum(0)).all()
    train, serve = np.split(found[f"{only}|held"], [3 - serving])
    assert not train.any() and serve.min() > 0 and serve.sum() == first + last


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, ways",
    [
        (2, ("off: in memory", "off: by messages", "on: by messages", "on: of a device")),
        pytest.param(2, ("on: in memory", "off: of a device"), marks=pytest.mark.more),
        pytest.param(3, ("off: in memory", "off: by messages", "off: of a device"), marks=pytest.mark.more),
    ],
)
def test_pieces_are_published_whatever_the_script_does_with_weights(ranks, ways, tmp_path):
    """With MATEX_OVERLAP=on, new weights arrive by messages while the script and the next step continue."""
    env = {**launch.ALL_FILES, "MATEX_OVERLAP": "off"}
    launch.run(ranks, HERE / "publishing_case.py", tmp_path, *ways, env=env, timeout=300).check()
    for rank in range(ranks):
        found = dict(np.load(tmp_path / f"rank-{rank}.npz"))
        for name in ways:
            assert found[name].tobytes() == found["allreduce"].tobytes(), name
            assert np.allclose(found[f"{name}, figures"], found["allreduce, figures"], rtol=1e-5), name


LARGE = """
import sys
import numpy as np
import tensorflow as tf
import matex_tf
kernel = tf.Variable(np.linspace(-1, 1, 4111 * 2063, dtype="float32").reshape(4111, 2063))
x = np.random.default_rng(0).normal(size=(4, 4111)).astype("float32")
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.tanh(x @ kernel))
    optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
for _ in range(3):
    step(tf.constant(x))
np.savez(f"{sys.argv[1]}/rank-{matex_tf.rank()}.npz", kernel=kernel)
"""


def test_pieces_of_more_bytes_than_caches_hold_are_published(tmp_path):
    """They are copied past the caches, here from and to addresses that are not those of whole lines."""
    wanted, got, _ = both(2, LARGE, folder=tmp_path)
    assert len(got) == 2 and not differing(wanted, got)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_new_weights_come_while_the_next_step_computes(ranks, tmp_path):
    """Between hosts, with one thread and two updates in a step."""
    more = {"MATEX_RANKS_PER_NODE": "1", "MATEX_ALGORITHM": "ring"}
    wanted, got, said = both(ranks, HERE / "pulls_case.py", folder=tmp_path, **more)
    assert "published in groups" in said
    if ranks == 2:  # more than two numbers are added in another order
        assert differing(wanted, got) == set()
    for want, have in zip(wanted, got):
        assert all(np.allclose(have[name], want[name], rtol=1e-4, atol=1e-5) for name in want)
    assert differing(got[:1], got[1:2]) == set()


def test_more_owners_than_ranks_are_refused(monkeypatch):
    monkeypatch.setattr(settings.get_settings(), "strategy", "servers:2")
    with pytest.raises(errors.SetupError, match="asks for 2 owners of the weights, and there are 1 ranks.*servers:1"):
        owners.list_owners()
    monkeypatch.setattr(settings.get_settings(), "strategy", "servers:1:only")
    monkeypatch.setattr(world, "get_world", lambda: world.World(size=1, servers=1))
    with pytest.raises(errors.SetupError, match="ranks that only serve"):
        owners.list_owners()
