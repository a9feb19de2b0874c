"""What a call of a step changes is put back after a loss, or the run ends; what knows of lost ranks is not used."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from resilience.test_elastic import read_weights, run

import launch
from matex_tf import errors
from matex_tf.resilience import elastic, elastic_step, replay
from matex_tf.steps import capture
from matex_tf.world.exit_codes import EXIT_STALLED

AFTER_A_LOSS = """
import os, posix, signal, sys
import keras, numpy as np, tensorflow as tf
what, mark = sys.argv[1:]
several = "matex_tf" in sys.modules
def lose():
    if not several:
        return
    from matex_tf.runtime import objects
    from matex_tf.world import world
    if world.get_world().rank == 1 and not posix.access(mark, posix.F_OK):
        posix.close(posix.open(mark, os.O_CREAT | os.O_WRONLY))
        os.kill(os.getpid(), signal.SIGKILL)
    objects.barrier("all that are left")
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
found = []
if what == "session":
    tf.compat.v1.disable_eager_execution()
    rows = tf.compat.v1.placeholder(tf.float32, [None, 4])
    w = tf.compat.v1.get_variable("w", initializer=np.ones([4, 1], "float32"))
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((rows @ w - 1.0) ** 2))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for number in range(4):
            lose() if number == 2 else None
            session.run(train, {rows: x})
        found = session.run(w)
elif what == "tape":
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    for number in range(6):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 1.0) ** 2)
        lose() if number == 4 else None
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    found = model.get_weights()[0]
else:
    mine = sys.modules["matex_tf"].shard(x) if several else x
    w = tf.Variable(tf.ones([4, 1]))
    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows @ w - 1.0) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
    for number in range(4):
        lose() if number == 2 else None
        for rows in tf.data.Dataset.from_tensor_slices(mine).batch(16):
            step(rows)
    found = w.numpy()
print("W", np.ravel(found).tolist())
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "what", ["tape", pytest.param("session", marks=pytest.mark.more), pytest.param("shares", marks=pytest.mark.more)]
)
def test_what_was_made_for_ranks_that_are_lost_is_not_used_without_them(what, tmp_path):
    script, mark = tmp_path / "script.py", tmp_path / "lost"
    script.write_text(AFTER_A_LOSS)
    want = read_weights(launch.run_alone(script, what, mark).check())
    found = run(3, script, [what, mark], tmp_path / "state").check()
    assert "2 go on without it" in found.stderr and "restart 1 of 3" in found.stderr and mark.exists(), found.output
    np.testing.assert_allclose(read_weights(found), want, rtol=1e-5)


LOST_WHILE_PADDING = """
import os, posix, signal, sys
import tensorflow as tf
mark, counted = sys.argv[1], []

def lose(allgather):
    def gather(value, purpose, *more, **named):
        counted.extend([1] if purpose == "the lengths of padded rows" else [])
        if len(counted) == 2 and world.get_world().rank == 2 and not posix.access(mark, posix.F_OK):
            posix.close(posix.open(mark, os.O_CREAT | os.O_WRONLY))
            os.kill(os.getpid(), signal.SIGKILL)
        return allgather(value, purpose, *more, **named)
    return gather

if "matex_tf" in sys.modules:
    from matex_tf.runtime import objects
    from matex_tf.world import world
    objects.allgather = lose(objects.allgather)
for batch in tf.data.Dataset.range(48).map(lambda at: tf.fill([at % 5 + 1], at)).padded_batch(6):
    print("BATCH", batch.numpy().tolist())
"""


@pytest.mark.more
@pytest.mark.timeout(600)
def test_a_padded_batch_has_all_rows_after_a_loss_while_lengths_are_compared(tmp_path):
    script, mark = tmp_path / "script.py", tmp_path / "lost"
    script.write_text(LOST_WHILE_PADDING)
    want = launch.run_alone(script, mark).check()
    found = run(3, script, [mark], tmp_path / "state").check()
    assert "2 go on without it, at: the lengths of padded rows" in found.stderr and mark.exists(), found.output
    batches = [[line for line in output.splitlines() if "BATCH" in line] for output in (want.stdout, found.stdout)]
    assert len(batches[0]) == 8 and batches[0] == batches[1], found.output


LATE_ERROR = """
import numpy as np, tensorflow as tf
x = np.ones([8, 3])
x[5, 0] = -1.0
w = tf.Variable(np.ones([3, 2]))

@tf.function
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(rows @ w))
    w.assign_sub(0.01 * tape.gradient(loss, w))
    tf.debugging.check_numerics(tf.math.log(rows[:, 0] + 0.0 * w[0, 0]), "rows")

for rows in (abs(x), x, abs(x)):
    try:
        step(tf.constant(rows))
    except tf.errors.InvalidArgumentError as error:
        print("Tensor had NaN values" in str(error))
print("W", np.ravel(w).tolist())
"""


def test_an_error_of_one_rank_after_the_last_collective_of_a_step_is_raised_on_all(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LATE_ERROR)
    alone = launch.run_alone(script).check()
    found = run(2, script, [], tmp_path / "state", MATEX_ABORT_SECONDS="60").check()
    assert alone.stdout.splitlines()[0] == found.stdout.splitlines()[0] == "True"
    np.testing.assert_allclose(read_weights(found), read_weights(alone), rtol=1e-10)


def make_step(function, *given, source=None):
    """What is known of the plan of a step, whose function is a `tf.function`."""
    own = capture.trace_step(function, given, {})
    inputs = SimpleNamespace(argument_count=len(own.graph.inputs) - len(own.captured_inputs), source=source)
    return SimpleNamespace(traced=own, inputs=inputs, place="s")


def test_two_losses_within_a_step_leave_its_variables_as_they_were():
    import tensorflow as tf

    whole, rows, read = tf.Variable(1.0), tf.Variable(tf.ones([3, 2])), tf.Variable(2.0)

    @tf.function
    def step(x):
        whole.assign_add(read)
        rows.scatter_nd_update([[1]], x)

    undo = elastic_step.Undo(make_step(step, tf.zeros([1, 2])))
    undo.save()
    for _ in range(2):
        step(tf.zeros([1, 2]))
        assert whole.numpy() == 3 and rows.numpy().sum() == 4
        undo.restore()
        assert whole.numpy() == 1 and rows.numpy().sum() == 6
    step(tf.zeros([1, 2]))
    undo.save()
    undo.restore()
    assert whole.numpy() == 3 and rows.numpy().sum() == 4


def make_steps_that_cannot_be_undone():
    import tensorflow as tf

    data, captured, variable = tf.data.Dataset.range(4), iter(tf.data.Dataset.range(4)), tf.Variable(0)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def count(batches):
        total = tf.constant(0, tf.int64)
        for one in batches:
            total += one
        return total

    def fill_table():
        table.insert(tf.constant(1, tf.int64), tf.constant(2, tf.int64))

    def count_data():
        return count(data)

    return {
        "a dataset": (tf.function(count), data),
        "a dataset that it refers to": (tf.function(count_data),),
        "an iterator that it refers to": (tf.function(captured.get_next),),
        "a variable that is an argument": (tf.function(lambda one: one.assign_add(1)), variable),
        "a table": (tf.function(fill_table),),
    }


def test_a_step_that_changes_more_than_its_variables_is_not_undone():
    import tensorflow as tf

    for name, (function, *given) in make_steps_that_cannot_be_undone().items():
        undo = elastic_step.Undo(make_step(function, *given))
        undo.save()
        with pytest.raises(errors.LostRankError):
            undo.restore()
            pytest.fail(f"{name} was put back")
    taking = tf.function(lambda batches: batches.get_next())
    undo = elastic_step.Undo(make_step(taking, iter(tf.data.Dataset.range(4))))
    undo.restore()
    assert undo.takes, "it is replayed"


def test_batches_that_a_step_took_from_an_iterator_are_given_again():
    import tensorflow as tf
    from tensorflow.python.data.util import structure

    ragged = tf.ragged.constant([[1], [2, 3], []], dtype=tf.int64)
    whole = (tf.reshape(tf.range(6), [3, 2]), {"r": ragged, "t": tf.constant(["a", "b", "c"]), "s": tf.sparse.eye(3)})
    data = tf.data.Dataset.from_tensor_slices(whole).batch(1)
    iterator = iter(data)
    given = replay.find_replay(iterator)
    assert given is replay.find_replay(iterator)

    def take():
        """The next batch, in plain numbers."""
        numbers, more = structure.from_compatible_tensor_list(
            data.element_spec,
            tf.raw_ops.IteratorGetNext(
                iterator=given.handle,
                output_types=structure.get_flat_tensor_types(data.element_spec),
                output_shapes=structure.get_flat_tensor_shapes(data.element_spec),
            ),
        )
        return numbers.numpy().tolist(), more["r"].to_list(), more["t"].numpy(), tf.sparse.to_dense(more["s"]).numpy()

    first, second = take(), take()
    given.go_back()
    assert str(take()) == str(first)
    given.keep()
    given.go_back()
    assert str(take()) == str(second) and take()[1] == [[]]
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            take()
    given.go_back()
    assert str(take()) == str(second)
    assert next(iterator, None) is None, "nothing is lost for who goes on with it"


def test_an_agreement_after_a_loss_that_does_not_come_ends_the_job(monkeypatch):
    """The watchdog has gone with the communicators; of a rank that has lost nothing it has not."""
    limits = SimpleNamespace(stall_seconds=0, abort_seconds=1)
    has_ended, codes = threading.Event(), []
    monkeypatch.setattr(elastic.time_limit.settings, "get_settings", lambda: limits)
    monkeypatch.setattr(elastic.shutdown, "abort_all_ranks", lambda code: (codes.append(code), has_ended.set()))
    monkeypatch.setattr(
        elastic.shrinking, "agree_on_success", lambda done, alone: (has_ended.wait(0 if done else 60), alone)
    )
    assert elastic._is_done_by_all(True, True) == (False, True) and codes == []
    assert elastic._is_done_by_all(False, True) == (True, True) and codes == [EXIT_STALLED]
