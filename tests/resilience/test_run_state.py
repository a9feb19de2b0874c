"""A run that is lost, or asked to end, goes on when it is started again, and gives what it gives undisturbed."""

import functools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import launch

CASE = Path(__file__).with_name("resuming_case.py")


def shown(result):
    """What the script showed, by name; of two runs of which one went on, what was shown last."""
    lines = [line.partition("SHOW")[2] for line in result.stdout.splitlines() if "SHOW" in line]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the script alone shows of `calls`, with "0" or "1" for `keras`, as TF_USE_LEGACY_KERAS has it."""

    @functools.cache
    def run_alone(keras, *calls):
        folder = tmp_path_factory.mktemp("alone")
        return shown(launch.run_alone(CASE, folder, *calls, env={"TF_USE_LEGACY_KERAS": keras}).check())

    return run_alone


def differences(want, found, where=""):
    """Where two structures of figures differ by more than 1e-10 of the larger of their value and 1e-3."""
    if isinstance(want, dict) and isinstance(found, dict):
        return [one for key in want for one in differences(want[key], found.get(key), f"{where}/{key}")]
    if isinstance(want, list) and isinstance(found, list) and len(want) == len(found):
        return [one for index in range(len(want)) for one in differences(want[index], found[index], f"{where}/{index}")]
    try:
        same = np.isclose(float(found), float(want), rtol=1e-10, atol=1e-13)
    except (TypeError, ValueError):
        same = want == found
    return [] if same else [f"{where}: {want} {found}"]


def run(ranks, folder, state, keras, lose, *calls, strategy="allreduce"):
    folder.mkdir(exist_ok=True)
    env = {"MATEX_STRATEGY": strategy, "TF_USE_LEGACY_KERAS": keras, "LOSE": lose}
    env.update(MATEX_SAVE_SECONDS="0.01", MATEX_STATE=str(state))
    return launch.matex_run(ranks, "--restarts", 2, CASE, folder, *calls, env=env)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "keras, ranks, lose, strategy",
    [
        pytest.param("0", (2, 3), "1:2:3:1:SIGKILL 2:1:2:0:SIGTERM", "allreduce", marks=pytest.mark.more),
        # The rank is lost that alone has the optimizer's variables.
        ("1", (2, 1), "0:1:2:0:SIGKILL 1:2:3:1:SIGUSR1 3:1:3:0:SIGKILL", "servers:1"),
        pytest.param("0", (3, 2), "1:1:2:1:SIGKILL 3:1:3:0:SIGTERM", "sharded", marks=pytest.mark.more),
        pytest.param("0", (1, 1), "1:2:3:0:SIGKILL 2:1:2:0:SIGTERM", "allreduce", marks=pytest.mark.more),
    ],
)
def test_nothing_is_lost(tmp_path, alone, keras, ranks, lose, strategy):
    want = alone(keras)
    state = tmp_path / "state"
    asked = run(ranks[0], tmp_path / "lost", state, keras, lose, strategy=strategy)
    how = next(name for name in ("SIGTERM", "SIGUSR1") if name in lose)
    assert asked.returncode == 75, asked.output
    assert "killed by SIGKILL" in asked.stderr and "restart 1 of 2" in asked.stderr
    assert (
        f"matex_tf: {how}: saved at epoch" in asked.stderr
        and "asked to end (exit code 75) after 1 restart" in asked.stderr
    )
    assert "non-zero status" not in asked.stderr, "mpirun calls an orderly end a failure"
    # On another number of ranks, and where the newest state was damaged: an older one is there.
    newest = max(state.glob("state-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    found = run(ranks[1], tmp_path / "lost", state, keras, lose, strategy=strategy).check()
    assert "resuming from the state saved at epoch" in found.stderr
    assert "calls of fit that had ended before the restart are skipped" in found.stderr
    assert "a loop of the script's own starts over" in found.stderr
    assert sorted(path.name for path in (tmp_path / "lost").iterdir()) == sorted([*lose.split(), "log.csv"])
    assert not differences(want, shown(found))
    assert not state.exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "keras, lose, call, saved, goes_on",
    [
        # The model and its metrics are made by the step that comes next.
        pytest.param(
            "1", "0:0:6:0:SIGUSR1", "first", "the end of epoch 1 of call 1", "epoch 2, step 0", marks=pytest.mark.more
        ),
        # Nobody knows that no step comes next.
        ("0", "1:0:6:0:SIGUSR1", "second", "epoch 1, step 7 of call 1", "epoch 1, step 7"),
        pytest.param(
            "1", "1:0:6:0:SIGUSR1", "second", "epoch 1, step 7 of call 1", "epoch 1, step 7", marks=pytest.mark.more
        ),
    ],
)
def test_what_was_kept_as_an_epoch_ends_is_of_that_epoch(tmp_path, alone, keras, lose, call, saved, goes_on):
    want = alone(keras, call)
    asked = run(2, tmp_path / "lost", tmp_path / "state", keras, lose, call)
    assert asked.returncode == 75 and f"SIGUSR1: saved at {saved}" in asked.stderr, asked.output
    found = run(2, tmp_path / "lost", tmp_path / "state", keras, lose, call).check()
    assert f"resuming from the state saved at {goes_on}" in found.stderr
    assert not differences(want, shown(found))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("keras", ["1", pytest.param("0", marks=pytest.mark.more)])
def test_a_call_goes_on_within_its_first_epoch(tmp_path, alone, keras):
    """Where its generator draws random numbers, and where the epoch's last step has fewer batches than the others."""
    calls = ("third", "fourth")
    want = alone(keras, *calls)
    lose = "2:0:2:0:SIGUSR1 3:0:5:0:SIGUSR1"
    for place in ("", "epoch 1, step 3 of call 1", "epoch 1, step 6 of call 2"):
        found = run(1, tmp_path / "lost", tmp_path / "state", keras, lose, *calls)
        assert place in found.stderr, found.output
    assert not differences(want, shown(found.check()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("keras", [pytest.param("1", marks=pytest.mark.more), "0"])
def test_a_call_goes_on_after_epochs_of_unknown_length(tmp_path, alone, keras):
    """Its data are shuffled anew in each of the epochs that are passed over."""
    want = alone(keras, "second")
    for place in ("", "epoch 3, step 0 of call 1", "epoch 4, step 5 of call 1"):
        found = run(1, tmp_path / "lost", tmp_path / "state", keras, "1:1:6:0:SIGUSR1 1:3:4:0:SIGUSR1", "second")
        assert place in found.stderr, found.output
    assert not differences(want, shown(found.check()))


SLOW_DISK = """
import os, signal, time
import keras, numpy as np
from matex_tf.resilience import state_files

def write_state(*args):
    time.sleep(4)
    plain(*args)

plain, state_files.write_state = state_files.write_state, write_state
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


def test_what_is_being_written_is_waited_for_by_all_ranks_that_are_asked_to_end(tmp_path):
    asked = launch.run(2, SLOW_DISK, env={"MATEX_STATE": str(tmp_path / "state")})
    assert asked.returncode == 75, asked.output
    assert asked.output.count("matex_tf: SIGTERM: ended between calls of fit") == 1
    assert [path.name for path in tmp_path.glob("state/end-*")] == ["end-000000"]


def test_a_batch_that_is_given_again_leaves_open_what_was_open():
    import tensorflow as tf

    from matex_tf.resilience import source_data

    data = tf.data.Dataset.from_tensor_slices((tf.ones([3, 2]), {"a": tf.range(3)})).batch(2)
    batches = list(data)
    again = source_data.make_iterator(batches, data.element_spec)
    assert again.element_spec == data.element_spec
    tf.nest.map_structure(np.testing.assert_array_equal, list(again), batches)


SHARES = """
import json, os, signal, sys
import keras, numpy as np, matex_tf

keras.utils.set_random_seed(4)
keras.backend.set_floatx("float64")
x = np.random.default_rng(1).random((46, 3))

class Ask(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if "ask" in sys.argv and (len(self.model.history.epoch), batch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        logs["drawn"] = float(np.random.random())

layers = keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)
model = keras.Sequential([keras.Input((3,)), *layers])
model.compile(keras.optimizers.Adam(0.02), "mse")
mine = matex_tf.shard(x)
history = model.fit(mine, mine.sum(1, keepdims=True), batch_size=8, epochs=3, verbose=0, callbacks=[Ask()])
print("SHOW" + json.dumps(["shares", [history.history, float(np.random.random())]]))
"""


def test_rows_of_each_rank_come_as_they_would_have_come(tmp_path):
    """Python code of ours reads them, which draws nothing; of other ranks they are other rows, which is said."""
    script = launch.script_file(SHARES)
    want = shown(launch.run(2, script).check())

    def run_asking(ranks, state):
        # The arguments are part of what tells a run from another one.
        return launch.run(ranks, script, "ask", env={"MATEX_STATE": str(state), "MATEX_SAVE_SECONDS": "0.01"})

    asked = run_asking(2, tmp_path / "two")
    assert asked.returncode == 75 and "saved at epoch 2, step" in asked.stderr, asked.output
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    two, three = run_asking(2, tmp_path / "two").check(), run_asking(3, tmp_path / "three").check()
    assert "some rows are used twice" in three.stderr and "some rows are used twice" not in two.stderr
    assert not differences(want, shown(two))


LATE = """
import colorsys, os, signal

class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.{}, write=os.write):
        kill(me, number)
        write(1, b"the end")

colorsys.late = Late()  # Python clears its modules after it has given up its handlers of signals
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_warning_after_the_end_of_the_script_changes_nothing(tmp_path, name):
    (tmp_path / "late.py").write_text(LATE.format(name))
    env = {"MATEX_STATE": str(tmp_path / "state")}
    ended = launch.matex_run(1, "--restarts", 1, tmp_path / "late.py", env=env, cold=True).check()
    assert "the end" in ended.stdout


LOST_OUTSIDE_FIT = """
import ctypes, os, signal, sys, time
from pathlib import Path
import keras, numpy as np
import matex_tf
from matex_tf.runtime import real_files

HOW = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crashed": lambda: ctypes.CDLL(None)["raise"](signal.SIGSEGV),
    "ended": lambda: ctypes.CDLL(None)._exit(255),
    "exit": lambda: os._exit(5),
    "asked": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "restored": lambda: (
        signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_IGN)),
        os.kill(os.getpid(), signal.SIGTERM),
    ),
    "raised": lambda: int("no number"),
}

def lose_rank(moment):
    with real_files.use_real_files():
        turn = len(list(Path(sys.argv[1]).iterdir()))
        matex_tf.barrier()
        how, when, rank = (sys.argv[2:][turn].split(":") if turn < len(sys.argv[2:]) else ("", "", "0"))
        if when != moment:
            return
        if matex_tf.rank() == int(rank):
            Path(sys.argv[1], str(turn)).touch()
            HOW[how]()
    time.sleep(30)  # where all others are, in Python
    os.write(1, b"went on")

lose_rank("before")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
lose_rank("between")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
lose_rank("after")
print("done")
"""


START_AGAIN = functools.partial(launch.matex_run, 2, "--restarts", 9)


def lose_outside_fit(tmp_path, *turns, start=START_AGAIN):
    (tmp_path / "case.py").write_text(LOST_OUTSIDE_FIT)
    (tmp_path / "turns").mkdir()
    env = {"MATEX_STATE": str(tmp_path / "state"), "MATEX_STALL_SECONDS": "2"}  # how long an error waits for rank 0
    result = start(tmp_path / "case.py", tmp_path / "turns", *turns, env=env)
    assert len(list((tmp_path / "turns").iterdir())) == len(turns), result.output
    assert "went on" not in result.output and "\0" not in result.output and "Traceback" not in result.stdout
    return result


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "turns",
    [
        ["killed:before:1", "exit:between:1", "ended:after:0"],
        pytest.param(["crashed:before:0", "killed:between:0", "crashed:after:1"], marks=pytest.mark.more),
        pytest.param(["exit:before:0", "ended:between:1", "killed:after:1"], marks=pytest.mark.more),
    ],
)
def test_a_run_that_loses_a_rank_outside_of_fit_is_started_again(tmp_path, turns):
    """mpirun ends the other ranks by SIGTERM, which they took for a request to end the run and go on later."""
    result = lose_outside_fit(tmp_path, *turns).check()
    assert result.stdout.endswith("done\n") and "ended well after 3 restarts" in result.stderr, result.output
    signs = {"killed": "SIGKILL", "crashed": "SIGSEGV", "exit": "(exit code 5)", "ended": "(exit code 255)"}
    assert all(signs[turn.partition(":")[0]] in result.stderr for turn in turns), result.output


@pytest.mark.parametrize("moment, rank", [("before", 1), pytest.param("between", 0, marks=pytest.mark.more)])
def test_a_script_that_fails_outside_of_fit_ends_with_its_own_exit_code(tmp_path, moment, rank):
    result = lose_outside_fit(tmp_path, f"raised:{moment}:{rank}")
    assert result.returncode == 1 and "ValueError: invalid literal" in result.stderr, result.output
    assert "exit code 75" not in result.output


@pytest.mark.parametrize("how, code", [("raised", 1), pytest.param("killed", 137, marks=pytest.mark.more)])
def test_of_mpirun_itself_nobody_promises_another_exit_code(tmp_path, how, code):
    """Its SIGTERM to the other ranks may be the batch system's."""
    result = lose_outside_fit(tmp_path, f"{how}:between:1", start=functools.partial(launch.run, 2))
    assert result.returncode == code and "exit code 75" not in result.output, result.output


@pytest.mark.parametrize("how", [pytest.param("asked", marks=pytest.mark.more), "restored"])
def test_a_rank_that_is_asked_to_end_outside_of_fit_asks_for_all(tmp_path, how):
    """Also where a library has had a handler of its own for a while."""
    result = lose_outside_fit(tmp_path, f"{how}:between:0")
    assert result.returncode == 75 and "SIGTERM: ended between calls of fit" in result.stderr, result.output
    assert "without an error message" not in result.stderr


@pytest.mark.parametrize("steps", [1, 50])
def test_ranks_vote_every_half_second(monkeypatch, steps):
    """Also if Keras makes many steps at once (`steps_per_execution`)."""
    from matex_tf.resilience import fit_state

    clock, votes = 0.0, []

    def vote(epoch, done, calls):
        votes.append(clock)
        return calls

    monkeypatch.setattr(fit_state.time, "monotonic", lambda: clock)
    run = SimpleNamespace(fits=0, load_state=lambda _: None, may_save=lambda _: True, has_trained=True)
    call = fit_state.Fit(run, None)
    monkeypatch.setattr(call, "_save_if_due", vote)
    call.begin_epoch(0)
    for done in range(steps, 10_001, steps):
        clock += 0.002 * steps
        call.end_batch(done, {})
    assert len(votes) > 20 and max(np.diff(votes)) < 0.6


def test_random_ops_of_a_resumed_step_are_reported(monkeypatch):
    """Also of a step that draws candidates, as `tf.nn.nce_loss` does; not of a layer on a GPU that has no dropout."""
    import tensorflow as tf

    from matex_tf.resilience import fit_state, resumption

    said = []
    monkeypatch.setattr(fit_state.notes, "print_note", said.append)
    saved = {"ended": False, "epoch": 0, "step": 1, "epochs": 0}
    run = SimpleNamespace(fits=0, load_state=lambda _: saved, may_save=lambda _: True, has_trained=True)

    def run_layer(dropout):
        state = tf.zeros([1, 1, 1])
        return tf.raw_ops.CudnnRNN(
            input=state, input_h=state, input_c=state, params=tf.zeros([16]), dropout=dropout, is_training=True
        )[0]

    for draw, draws in (
        (lambda: tf.random.stateless_uniform([2], [1, 2]), False),
        (lambda: tf.random.uniform_candidate_sampler(tf.zeros([1, 1], tf.int64), 1, 2, True, 9), True),
        (lambda: run_layer(0.0), False),
        (lambda: run_layer(0.5), True),
    ):
        said.clear()
        call = fit_state.Fit(run, None)
        call.resumption.phase = resumption.Phase.TRAINS
        call.note_trained(SimpleNamespace(traced=tf.function(draw).get_concrete_function()))
        assert any("random ops, whose state cannot be saved" in text for text in said) == draws


def test_fit_in_a_thread_is_not_saved(monkeypatch):
    """Ranks would save it together, and their threads are not in step."""
    from matex_tf.resilience import fit_hooks, fit_state, run_state

    def fit(model, x):
        return fit_state.find_current()

    run = SimpleNamespace(current_fit=None)  # it has none of the attributes that a call whose state is saved needs
    monkeypatch.setattr(run_state, "_run", run)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fit_hooks._wrap_fit(fit), "model", "data").result() is None
        run.current_fit = "the call of the main thread"
        assert pool.submit(fit_hooks._wrap_fit(fit), "model", "data").result() is None
    assert fit_state.find_current() == "the call of the main thread"
