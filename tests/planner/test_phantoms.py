"""Phantom ranks: a script of each kind works as rank 0 of 16 that are not there, and is stopped after its steps."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from planner_plans import a_plan

import launch
from matex_tf import settings
from matex_tf.launch.planning import ranks, sizes
from matex_tf.planner.measurement import phantoms

MOMENTA_AND_PIECES = {"fit": (20, 20), "reader": (20, 20), "function": (20, 20), "eager": (20, 0), "session": (0, 0)}
"""Bytes of the optimizer's variables, and of the weights that ranks could update in pieces: a kernel and a bias."""
CASE = Path(__file__).with_name("phantom_case.py")


@pytest.mark.parametrize("kind", ["fit", "eager", "function", "session", "reader"])
def test_a_script_of_each_kind_is_measured(kind, tmp_path):
    plan = {"MATEX_PLAN": f"16:14:0:1:{tmp_path}", "MATEX_OVERLAP": "on"}
    ended = launch.run_alone(CASE, kind, tmp_path, env=plan, module=True).check()
    assert "went on" not in ended.output
    notes, steps, _ = phantoms.read_copy(tmp_path, 0, ended.returncode, 16)
    # The loss of a loop rides with the gradients.
    assert {gradient.bytes for gradient in steps.gradients} == {4, 16} and len(steps.gradients) <= 3
    assert steps.rows == 32 and len(steps.seconds) >= 8
    assert all(0 < ready <= 1.5 * max(steps.seconds) for ready in steps.ready)
    assert notes["peak"] >= notes["base"] > 100 << 20 and not notes["cores"] <= 0
    update = json.loads(str(notes["update"]))
    assert (update["slots"] + update["whole"], update["weights"]) == MOMENTA_AND_PIECES[kind]
    assert update["gradients"] == update["weights"] and (steps.update > 0) == (update["weights"] > 0)
    is_fit = kind in ("fit", "reader")
    assert (
        ("only fit trains so" in update["not_async"]) == ("only fit trains so" in update["not_local"]) == (not is_fit)
    )
    assert {"eager": "outside of a tf.function", "session": "tf.compat.v1"}.get(kind, "") in update["why_not"]
    epoch = json.loads(str(notes["epoch"]))
    # Of a reader's share of the rows the other 15 have copies.
    assert epoch["batches"] == {"session": 0, "reader": 11}.get(kind, 10)
    assert ("no batches were given by `fit`" in epoch["why_not"]) == (kind == "session")
    counted = phantoms.count_epoch_steps(epoch["batches"], epoch["given"], epoch["updates"] * steps.share)
    assert counted == epoch["batches"]


def test_a_sparse_gradient_is_gathered_by_as_many_bytes_as_its_slice_has_rows(tmp_path):
    """On 2 and on 8 ranks steps are alike, whatever the names of their collectives say."""
    found = []
    for count in (2, 8):
        folder = tmp_path / str(count)
        folder.mkdir()
        plan = {"MATEX_PLAN": f"{count}:14:0:1:{folder}", "MATEX_OVERLAP": "on"}
        ended = launch.run_alone(CASE, "sparse", folder, env=plan, module=True).check()
        found.append(phantoms.read_copy(folder, 0, ended.returncode, count)[1])
    two, eight = found
    assert two.form == eight.form
    gathered = [number for number, one in enumerate(two.collectives) if one.kind == "allgather"]
    assert len(gathered) == 2 and all(two.bytes[number] == 4 * eight.bytes[number] for number in gathered)
    rows, numbers = 16 * 4, 6 * 4
    assert two.bytes[gathered[1]] == rows * numbers
    messages = [size for one, size in zip(two.collectives, two.bytes) if one.kind == "message"]
    assert all(size > 0 for size in messages)


@pytest.mark.parametrize("kind", ["eager", "function", "fit"])
def test_batches_that_ranks_do_not_share_evenly_are_whole(kind, tmp_path):
    plan = {"MATEX_PLAN": f"3:14:0:1:{tmp_path}"}
    ended = launch.run_alone(Path(__file__).with_name("uneven_case.py"), kind, env=plan, module=True).check()
    assert "went on" not in ended.output
    assert phantoms.read_copy(tmp_path, 0, ended.returncode, 3)[1].rows == 128


EPOCHS = {
    "accumulated": (10, "strong", 2),  # the gradients of each batch are summed, and 4 of them make an update
    "steps": (7, "strong", 4),  # of steps_per_epoch; the data do not tell
    "generator": (13, "strong", 4),  # which ended within the steps
    "endless": (0, "strong", 4),
    "pair": (10, "strong", 4),  # two models in a step
    "several": (10, "strong", 4),  # batches in each call
    "fit": (12, "weak", 4),  # an epoch of 4 ranks is 3 steps of 4 batches
    "loop": (10, "weak", 4),
}


@pytest.mark.parametrize("kind", EPOCHS)
def test_the_steps_of_an_epoch_are_counted(kind, tmp_path):
    wanted, scaling, ranks = EPOCHS[kind]
    plan = {"MATEX_PLAN": f"{ranks}:30:0:1:{tmp_path}", "MATEX_OVERLAP": "on", "MATEX_SCALING": scaling}
    ended = launch.run_alone(Path(__file__).with_name("epochs_case.py"), kind, env=plan, module=True).check()
    notes, steps, _ = phantoms.read_copy(tmp_path, 0, ended.returncode, ranks)
    epoch = json.loads(str(notes["epoch"]))
    found = phantoms.count_epoch_steps(epoch["batches"], epoch["given"], epoch["updates"] * steps.share)
    assert found == wanted
    assert ("is unknown, and no epoch" in epoch["why_not"]) == (kind == "endless")


@pytest.mark.parametrize(
    "script, why",
    [
        ("import nothing_of_this_name\n\n", "it failed with exit code 1"),
        ("import tensorflow as tf\nprint(tf.constant(1))\n", "no gradients had been reduced: nothing was trained"),
    ],
)
def test_a_script_that_cannot_be_measured_says_how_far_it_came(script, why, tmp_path):
    ended = launch.run_alone(script, env={"MATEX_PLAN": f"4:14:0:1:{tmp_path}"}, module=True)
    (tmp_path / "said-0").write_text(ended.output)
    with pytest.raises(phantoms.NotMeasured, match=why):
        phantoms.read_copy(tmp_path, 0, ended.returncode, 4)
    assert ("nothing_of_this_name" in ended.output) == ("nothing" in script)


WHOLE = """
import tensorflow as tf
w = tf.Variable([1.0])
while True:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    w.assign_sub(0.1 * tape.gradient(loss, w))
"""


def test_steps_that_every_rank_computes_whole_are_told_and_not_waited_for(tmp_path):
    ended = launch.run_alone(WHOLE, env={"MATEX_PLAN": f"4:14:0:1:{tmp_path}"}, module=True).check()
    with pytest.raises(phantoms.NotMeasured, match="every rank computes the whole of each step"):
        phantoms.read_copy(tmp_path, 0, ended.returncode, 4)


def test_ranks_may_take_what_the_plan_says_when_it_is_made_and_when_it_is_checked(tmp_path, monkeypatch, capsys):
    given = []

    def note_limits(environment):
        given.append((environment.get("MATEX_MEMORY"), environment.get("MATEX_MICROBATCH")))

    start_any = phantoms._start_copy

    def start_copy(script, copy, folder, environment, launch=None):
        if launch:
            return start_any(script, copy, folder, environment, launch)
        note_limits(environment)
        raise phantoms.NotMeasured

    def launch_ranks(count, target, options, environment):
        note_limits(environment)
        assert environment["MATEX_PLAN"].startswith("0:") and options == ["--host", "a:2,b:2"[: 2 * count - 1]]
        return ["sh", "-c", "exit 3"]

    monkeypatch.setattr(phantoms, "_start_copy", start_copy)
    for name in ("MATEX_MEMORY", "MATEX_MICROBATCH"):
        monkeypatch.delenv(name, raising=False)
    for limit in (2 << 30, 0):
        with pytest.raises(phantoms.NotMeasured):
            phantoms.measure_copies(["train.py"], 4, 2, tmp_path, limits=phantoms.make_limits(limit, 0))
    assert given == [(str(2 << 30), "0"), ("0", "0")]
    monkeypatch.setenv("MATEX_MEMORY", "9GiB")
    monkeypatch.setenv("MATEX_MICROBATCH", "8")
    for made in (a_plan(memory=2.0**30, microbatch=settings.AUTO), a_plan(microbatch=32), a_plan()):
        assert ranks.check_predictions(made, [1, 2, 4], launch_ranks, ["a", "b"]) == 1
    assert given[2:] == [(str(2**30), "auto")] * 3 + [("0", "32")] * 3 + [("0", "0")] * 3
    assert "failed with exit code 3" in capsys.readouterr().err
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(phantoms, "measure_copies", lambda *given: given[-1])
    for memory, limit in ((2.0**30, 1 << 30), (0.0, 9 << 30)):
        wanted = SimpleNamespace(ranks=[4], copies=2, memory=memory, steps=5, scaling="strong")
        limits = {"MATEX_MEMORY": str(limit), "MATEX_MICROBATCH": "8"}
        found = sizes.Sizes(["train.py"], wanted)._measure_copies(4, 2)
        assert found == limits, "where no limit is given, that of MATEX_MEMORY"


def test_copies_start_once_each_has_its_mirror_without_those_of_the_others(tmp_path, monkeypatch):
    """Copies that start while others are mirrored do not compete for cores. Temporary files may be in the folder."""
    folder, seen = tmp_path / "temporary" / "plan", []
    folder.mkdir(parents=True)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)

    def start(command, patience, cwd, **options):
        seen.append(sorted(path.relative_to(folder) for path in folder.rglob("train.py")))
        raise phantoms.NotMeasured

    monkeypatch.setattr(phantoms.started, "start_process", start)
    with pytest.raises(phantoms.NotMeasured):
        phantoms.measure_copies(["train.py"], 4, 3, folder)
    assert seen == [[Path(f"place-{copy}") / "train.py" for copy in range(3)]]


def test_fewer_steps_than_asked_are_told_and_a_script_that_is_too_slow_for_them(tmp_path, monkeypatch, capsys):
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    steps = SimpleNamespace(seconds=(0.1,) * 30)
    for updates, said in ((60, ""), (33, "matex: only 33 of 60 steps were recorded")):
        monkeypatch.setattr(phantoms, "read_copy", lambda *_, seen=updates: ({"updates": seen}, steps, True))
        took = phantoms.measure_real(lambda *_: ["true"], ["train.py"], tmp_path, 60, "strong")
        err = capsys.readouterr().err
        assert took == pytest.approx(0.1) and err.startswith(said) and bool(err) == bool(said)
    monkeypatch.undo()
    with pytest.raises(phantoms.NotMeasured, match="it had not reached 60 steps after 300 s; its progress is not"):
        phantoms.read_copy(tmp_path, 7, None, 2, 60)


SLOW = """
import time, tensorflow as tf
from matex_tf.observe import measured_steps
w = tf.Variable([[1.0]])

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x @ w)
    w.assign_sub(0.1 * tape.gradient(loss, w))

for _ in range({updates}):
    step(tf.ones([4, 1]))
measured_steps.LIMIT = 0
time.sleep(100)
"""


@pytest.mark.parametrize("updates", [0, 2, 9])
def test_a_script_that_takes_too_long_ends_by_itself_and_tells_how_far_it_came(updates, tmp_path):
    ended = launch.run_alone(SLOW.format(updates=updates), env={"MATEX_PLAN": f"4:14:0:1:{tmp_path}"}, module=True)
    assert ended.returncode == 0
    if updates == 9:  # it has steps enough
        assert len(phantoms.read_copy(tmp_path, 0, 0, 4, 14)[1].seconds) >= 3
        return
    reached = "it had trained for 2 steps" if updates else "no gradients had been reduced"
    with pytest.raises(phantoms.NotMeasured, match=f"not reached 14 steps after .*{reached}") as raised:
        phantoms.read_copy(tmp_path, 0, 0, 4, 14)
    assert raised.value.is_late and not raised.value.is_short and raised.value.updates == updates
