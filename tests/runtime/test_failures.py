"""What goes wrong is said once, with rank and host, ends every rank and gives an exit code that is not 0."""

import os
import re
import sys
import textwrap

import h5py
import netCDF4
import pytest

import launch
from matex_tf.world import exit_codes

MODEL = """
import sys
import numpy as np
import tensorflow as tf
import matex_tf
import keras
rank = matex_tf.rank()
units = 5 + (rank if "models" in sys.argv else 0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
x, y = np.ones((80, 4), "float32"), np.ones((80, 1), "float32")
"""
LOOP = (
    MODEL
    + """
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
if "function" in sys.argv:
    step = tf.function(step)
mean = keras.metrics.Mean()
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
if "uneven" in sys.argv and rank == 1:
    data = data.map(lambda a, b: (a, b)).enumerate().map(lambda i, e: (e[0][i // 5:], e[1][i // 5:]))
for index, (a, b) in enumerate(data):
    step(a, b)
    if "break" in sys.argv and rank == 1 and index == 3:
        break
mean.update_state(1.0)
print(mean.result())
"""
)
FIT = (
    MODEL
    + """
if "leave" in sys.argv and rank == 1:
    sys.exit(int(sys.argv[2]))
model.compile(optimizer, "mse")
if "rows" in sys.argv:
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8 + rank)
    model.fit(data, verbose=0)
if "branch" in sys.argv:
    print(matex_tf.allreduce(1.0) if rank == 0 else matex_tf.broadcast(1.0))
model.fit(x, y, epochs=1 + rank if "epochs" in sys.argv else 1, verbose=0)
if "caught" in sys.argv:
    try:
        if rank == 1:
            raise ValueError("on one rank only")
        model.evaluate(x, y, verbose=0)
    except ValueError:
        pass
    model.fit(x, y, verbose=0)
"""
)


def failed(ranks, script, *arguments, code=1, **options):
    result = launch.run(ranks, script, *arguments, timeout=280, **options)
    assert result.returncode == code, result.output[-4000:]
    return result


def test_an_exception_on_one_rank_ends_all_and_is_told_once():
    """Also one whose text is like that of a collective that failed."""
    script = """
        import time
        import tensorflow
        import matex_tf
        matex_tf.barrier()
        if matex_tf.rank() == 1:
            raise ValueError("a reason of my own: the end of its script, with exit code 7; its own message says why")
        time.sleep(60)
        print("has not been ended", flush=True)
    """
    script = "\n".join(line[8:] for line in script.splitlines())
    result = failed(2, script, cold=True, env={"MATEX_STALL_SECONDS": "2"})  # how long rank 1 waits for rank 0
    assert result.stdout == ""
    assert result.output.count("ValueError: a reason of my own") == 1
    assert "rank 1 of 2 on " in result.stderr


def test_the_same_exception_on_all_ranks_is_told_once():
    result = failed(3, "import tensorflow\nraise ValueError('everywhere')\n")
    assert result.output.count("ValueError: everywhere") == 1
    assert re.search("rank . of 3 on .* failed at script.py, line 2[ :]", result.stderr)


def test_exit_codes():
    script = "import sys\nimport tensorflow\nprint('once')\nsys.exit(3)\n"
    result = failed(2, script, code=3)
    assert result.stdout.count("once") == 1
    result = failed(2, FIT, "leave", 3, code=3)
    assert "rank 1" in result.output and "with exit code 3" in result.output


def test_the_name_of_a_collective_is_no_exit_code():
    script = """
import tensorflow
import matex_tf
from matex_tf import ops

name = "the end of its script, with exit code 7; its own message says why"
ops.barrier(name) if matex_tf.rank() == 1 else ops.allreduce(1.0, name=name)
"""
    assert "different places" in failed(2, script).stderr


def test_of_several_ranks_that_have_ended_the_one_with_an_exit_code_ends_all():
    script = """
import sys
import tensorflow
import matex_tf

if matex_tf.rank() == 1:
    sys.exit(3)
if matex_tf.rank() == 2:
    matex_tf.barrier()
"""
    assert re.search("rank 1 of 3 on .* with exit code 3", failed(3, script, code=3).stderr)


ENDS = """
import sys
import tensorflow as tf
import matex_tf

@tf.function
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(weights, rows))
    gradient = tf.convert_to_tensor(tape.gradient(loss, weights))
    return matex_tf.ops.reduce_gradients([gradient], ["weights"], 1.0, "an update")[0]

weights = tf.Variable(tf.ones([5, 3]))
alone = matex_tf.rank() == 1
if "hook" in sys.argv:
    sys.excepthook = lambda kind, error, trace: print("in my colours:", error, file=sys.stderr)
for turn in range(30):
    if alone and turn == 20:
        if "text" in sys.argv:
            sys.exit("there are no data at /scratch")
        if "raise" in sys.argv:
            raise SystemExit(3)
        if "hook" in sys.argv:
            raise ValueError("a reason of my own")
    step(tf.constant([1, 77 if alone and turn == 20 and "step" in sys.argv else 2]))
"""


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("text", 1, "there are no data at /scratch"),
        ("raise", 3, "with exit code 3"),
        ("hook", 1, "ValueError: a reason of my own"),
        ("step", 1, "[1] = 77 is "),
    ],
)
def test_the_reason_reaches_the_terminal_however_one_rank_ends(how, code, said):
    """Also that of an overlapped update, for which the other ranks fail sooner than the rank itself can say it."""
    result = failed(2, ENDS, how, code=code, env={"MATEX_OVERLAP": "on"})
    assert said in result.stderr and "rank 1" in result.stderr and "\0" not in result.output, result.stderr
    assert (how != "text") or len(result.stderr.splitlines()) < 12, "what follows from an exit is told beside it"


OF_AN_OP = """
import keras, numpy as np, tensorflow as tf

class Mine(keras.layers.Layer):
    def call(self, x):
        return tf.debugging.check_numerics(x, "not a number of mine")

model = keras.Sequential([keras.Input((2,)), Mine(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.full((8, 2), np.nan), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.parametrize("frames", ["script", pytest.param("full", marks=pytest.mark.more)])
def test_of_where_an_op_was_made_the_lines_of_the_script_are_shown(frames):
    """TensorFlow tells a hundred lines of libraries before the one that counts."""
    result = failed(2, OF_AN_OP, env={"MATEX_TRACEBACK": frames})
    block = result.stderr.partition("Detected at node")[2].partition("not a number of mine")[0]
    files = [os.path.basename(path) for path in re.findall('^  File "(.*)", line', block, re.MULTILINE)]
    files = [name for name in files if name != "warm_server.py"]  # which starts the script here
    assert files[-1] == "script.py" or frames == "full", result.stderr
    assert set(files) >= {"script.py"} and (set(files) == {"script.py"}) == (frames == "script"), files


EXITS = """
import sys, threading
import numpy as np
import matex_tf

class Text:
    def __str__(self):
        return "of an object"

class Silent:
    def __str__(self):
        raise RuntimeError

def leave(how):
    if how == "caught":
        try:
            sys.exit("it is caught")
        except SystemExit:
            return
    if how == "thread":
        thread = threading.Thread(target=sys.exit, args=("of a thread",))
        thread.start()
        thread.join()
        return
    kinds = {"none": None, "zero": 0, "true": True, "int": 3, "large": 259, "negative": -2, "huge": 2**80, "float": 2.5,
             "text": "no data", "empty": "", "object": Text(), "silent": Silent(), "numpy": np.int64(4)}
    if how.startswith("raise"):
        raise SystemExit(kinds[how.partition(" ")[2]])
    sys.exit(kinds[how])

matex_tf.barrier()
if matex_tf.rank() == 1 or "all" in sys.argv:
    leave(sys.argv[1])
"""
KINDS = {
    "none": (0, ""), "zero": (0, ""), "true": (1, ""), "int": (3, ""), "large": (3, ""), "negative": (254, ""),
    "huge": (255, ""), "float": (1, "2.5"), "text": (1, "no data"), "object": (1, "of an object"), "silent": (1, ""),
    "numpy": (1, "4"), "empty": (1, ""), "raise text": (1, "no data"), "raise int": (3, ""), "caught": (0, ""),
    "thread": (0, ""),
}  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=[] if how in ("text", "huge", "caught", "thread") else pytest.mark.more) for how in KINDS],
)
def test_what_any_rank_says_to_exit_is_heard(how, module=True):
    """Also where all ranks have come to the end of the script, and only one of them by an exit."""
    code, text = KINDS[how]
    result = launch.run(2, EXITS, how, module=module)
    assert result.returncode == code, result.output
    assert ("rank 1 of 2" in result.stderr and repr(text) in result.stderr) or not text, result.output
    assert "it is caught" not in result.output


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python does not tell what ends a module")
@pytest.mark.parametrize("how", ["caught", "raise text", pytest.param("raise int", marks=pytest.mark.more)])
def test_an_exit_is_heard_where_it_ends_a_script_that_imports_the_library(how):
    test_what_any_rank_says_to_exit_is_heard(how, module=False)


@pytest.mark.more
def test_what_all_ranks_say_to_exit_is_told_once():
    result = failed(2, EXITS, "text", "all")
    assert result.stderr.count("no data") == 1, result.output


def test_exit_codes_are_those_of_python():
    for code in (
        None,
        0,
        1,
        True,
        False,
        255,
        256,
        259,
        -1,
        -256,
        2**31,
        2**63,
        -(2**63),
        2**80,
        -(2**80),
        "x",
        "",
        2.5,
    ):
        program = f"import sys; sys.exit({code!r})"
        assert exit_codes.compute_exit_code(code) == launch.execute([sys.executable, "-c", program], {}, 60).returncode


def test_a_rank_that_ends_early_is_named():
    result = failed(2, FIT, "leave", 0)
    assert "has ended its script" in result.output and "rank 1 (" in result.output


@pytest.mark.parametrize("script, arguments", [(FIT, ["models"]), (LOOP, ["models"]), (LOOP, ["models", "function"])])
def test_models_that_differ_are_named(script, arguments):
    result = failed(2, script, *arguments)
    assert "matex_tf.MismatchError" in result.output and "kernel" in result.output
    assert "[4, 5]" in result.output and "[4, 6]" in result.output
    assert "rank 0 (" in result.output and "rank 1 (" in result.output


OVERLAPPED = """
import tensorflow as tf
import matex_tf
from matex_tf import ops

@tf.function
def step(x):
    return ops.reduce_gradients([x], ["kernel"], 1.0, "the update of a test")[0]

for _ in range(2):
    try:
        step(tf.ones([4 + min(matex_tf.rank(), 1)]))
    except tf.errors.FailedPreconditionError as error:
        print(matex_tf.rank(), "'kernel', is float32 [4] on rank 0" in str(error))
"""


def test_gradients_that_differ_and_are_overlapped_are_named_on_every_rank():
    result = failed(3, OVERLAPPED, env={"MATEX_OVERLAP": "on", "MATEX_OUTPUT": "all"})
    assert sorted(result.stdout.split()) == sorted("0 True 1 True 2 True".split() * 2)


ONE_LABEL = """
import numpy as np
import tensorflow as tf

w = tf.Variable(np.ones((4, 3)))
x, labels = np.ones((12, 4)), np.arange(12) % 3
labels[-1] = 7

@tf.function
def step(x, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ w))

step(x, labels)
"""


def test_a_row_of_one_rank_that_cannot_be_computed_is_told_once():
    result = launch.run(2, ONE_LABEL)
    told = "rank 1 (", "failed in the step 'step'", "Received a label value of 7"
    assert result.returncode and [result.stderr.count(words) for words in told] == [1, 1, 1], result.stderr
    assert "contextlib" not in result.stderr, "a frame of how the library passes the error on"


IN_PARTS = """
import sys
import tensorflow as tf
import matex_tf
from matex_tf import ops
last = matex_tf.rank() == matex_tf.size() - 1
layers = 2 if sys.argv[1] == "layers" and last else 3

@tf.function
def step(x, limit):
    found = []
    for number in range(layers + 1):
        found += ops.reduce_gradients(
            [x], [f"kernel {number}"], 1.0, "a backward pass", part_of="all kernels", has_more=number < layers
        )
        if number == 1:
            with tf.control_dependencies([tf.debugging.assert_less(x, limit, message="too much")]):
                x = tf.identity(x)
        if number < layers:
            x = ops.allreduce(x, "mean", f"layer {number}")
    return found

step = step.get_concrete_function(tf.ones([4]), tf.constant(2.0))
assert str(step.graph.as_graph_def()).count('op: "MatexAnnounceUpdate"') == layers + 1
for turn in range(3):
    fails = sys.argv[1] != "layers" and turn == 1 and last
    try:
        step(tf.ones([4]), tf.constant(0.0 if fails else 2.0))
    except tf.errors.OpError as error:
        if sys.argv[1] != "caught":
            raise
        print(matex_tf.rank(), "in turn", turn, type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    "how, said",
    [
        ("raise", ["rank 2 of 3", "too much"]),
        ("layers", ["a backward pass: rank 0 (", ") will compute more, rank 2 (", ") computes no more"]),
    ],
)
def test_a_rank_that_does_not_come_to_the_next_part_of_an_update(how, said):
    result = failed(3, IN_PARTS, how, env={"MATEX_OVERLAP": "on"})
    for text in said:
        assert text in result.output, result.output


def test_a_part_that_one_rank_does_not_come_to_fails_on_all_also_where_scripts_go_on():
    """They are at different collectives from then on: the others at one of the step, this one at the next step's."""
    result = failed(3, IN_PARTS, "caught", env={"MATEX_OVERLAP": "on", "MATEX_OUTPUT": "all"})
    found = sorted(line for line in result.stdout.splitlines() if "in turn" in line)
    assert [line for line in found if "in turn 0" in line] == []
    assert [line.split(" in ")[0] for line in found] == ["0", "0", "1", "1", "2", "2"], result.output
    assert "2 in turn 1 InvalidArgumentError" in found and "2 in turn 2 FailedPreconditionError" in found


def test_ranks_at_different_places_are_named():
    result = failed(2, LOOP, "break")
    assert "the call of 'sequential'" in result.output and "rank 1 (" in result.output
    assert "has ended its script" in result.output
    assert "contextlib.py" not in result.output, "frames of `with` in the library"


@pytest.mark.parametrize(
    "what, here, there",
    [
        ("branch", "is at allreduce (mean) of float32 []", "is at broadcast from rank 0 of float32 []"),
        ("epochs", "rank 0 (", "has ended its script"),
        ("caught", "rank 0 (", "rank 1 ("),
    ],
)
def test_ranks_that_do_other_things_are_told_apart(what, here, there):
    result = failed(2, FIT, what)
    assert here in result.output and there in result.output, result.output
    assert "collective number" in result.output, result.output


def test_batches_of_other_sizes_are_an_error():
    result = failed(2, FIT, "rows")
    assert "matex_tf.BatchError" in result.output
    assert "8 on rank 0" in result.output and "9 on rank 1" in result.output


def test_batches_that_lose_rows_later_are_an_error():
    result = failed(2, LOOP, "uneven")
    error = next(line for line in result.output.splitlines() if "ranks are at different places" in line)
    assert "'sequential' with 8 rows" in error and "'sequential' with 7 rows" in error, result.output


def test_a_strategy_is_refused():
    result = failed(2, "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n")
    assert (
        "matex_tf.UnsupportedError" in result.output
        and "MirroredStrategy" in result.output
        and "line 2: strategy =" in result.output
    )


def test_the_line_of_a_strategy_is_found_in_any_folder(tmp_path):
    script = tmp_path / "tensorflow" / "keras" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("import tensorflow as tf\ndef made():\n    tf.distribute.OneDeviceStrategy('cpu')\nmade()\n")
    result = failed(2, script)
    assert f"{script}, line 3: tf.distribute.OneDeviceStrategy" in result.output


TRACED = """
import keras
import numpy as np

class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("in a callback")

def train():
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[Mine()])

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    train()
except ValueError as error:
    raise RuntimeError("of my own") from error
"""


@pytest.mark.parametrize("frames", ["script", "full"])
def test_a_traceback_is_of_the_script(frames):
    result = failed(2, TRACED, env={"MATEX_TRACEBACK": frames})
    found = re.findall('^  File "(.*)", line .*, in (.*)$|^(\\w+Error: .*)$', result.stderr, re.MULTILINE)
    seen = [(os.path.basename(path), name) if path else said for path, name, said in found]
    seen = [one for one in seen if one[0] != "warm_server.py"]  # which starts the script here
    script = [one for one in seen if one[0] == "script.py" or isinstance(one, str)]
    assert script == [
        ("script.py", "<module>"),
        ("script.py", "train"),
        ("script.py", "on_epoch_end"),
        "ValueError: in a callback",
        ("script.py", "<module>"),
        "RuntimeError: of my own",
    ]
    assert (("keras_data.py", "fit") in seen) == (frames == "full")
    assert len(seen) - len(script) <= 1 or frames == "full", "the line of Keras that raises it again"
    assert ("MATEX_TRACEBACK=full shows the frames of matex_tf, too" in result.stderr) == (frames == "script")


WAY_BACK = """
import tensorflow as tf

@tf.custom_gradient
def alike(x):
    def back(upstream):
        raise ValueError("no way back")
    return x, back

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(alike(x @ w))
    w.assign_sub(tape.gradient(loss, w))

w = tf.Variable([[1.0], [2.0]])
step(tf.ones((8, 2)))
"""


@pytest.mark.parametrize("frames", ["script", pytest.param("full", marks=pytest.mark.more)])
def test_what_autograph_says_of_a_gradient_function_is_of_the_script(frames):
    result = failed(2, WAY_BACK, env={"MATEX_TRACEBACK": frames})
    told = result.stderr.partition("in user code:")[2].partition("ValueError: no way back")
    seen = re.findall('^    File ".*/(.*)", line .*, in (\\w+)', told[0], re.MULTILINE)
    script = [("script.py", "step"), ("script.py", "back")]
    assert told[1] and [one for one in seen if one[0] == "script.py"] == script
    assert (seen == script) == (frames == "script"), seen


RAISES = """
import sys, traceback
import tensorflow as tf

def cost(x):
    if "traced" in sys.argv:
        raise ValueError("no cost")
    tf.debugging.assert_less(tf.reduce_max(x), 1.5, "too large")
    return tf.reduce_mean(x ** 2)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = cost(x @ w)
    w.assign_sub(tape.gradient(loss, w))
    return loss

def train():
    if "taped" in sys.argv:
        with tf.GradientTape():
            return step(tf.ones((8, 2)))
    return step(tf.ones((8, 2)))

w = tf.Variable([[1.0], [2.0]])
for _ in range(2):
    try:
        train()
    except Exception:
        print(traceback.format_exc())
train()
"""


def read_frames(text):
    """The frames of the tracebacks in `text`, from the script on, as (file, function); not where an op was made."""
    text = re.sub("Detected at node.*?(Traceback|$)", "", text, flags=re.DOTALL)
    frames = re.findall('File "(?:.*/)?(.*)", line \\d+, in (\\w+|<\\w+>)', text)
    frames = [(re.sub("__autograph_generated_file.*", "AutoGraph", file), name) for file, name in frames]
    return frames[frames.index(("script.py", "<module>")) :]


@pytest.mark.parametrize("arguments", [["traced"], ["run"], pytest.param(["traced", "taped"], marks=pytest.mark.more)])
def test_the_traceback_of_a_function_has_the_frames_that_it_has_alone(arguments):
    alone, ranks = launch.run_alone(RAISES, *arguments), failed(2, RAISES, *arguments)
    assert alone.returncode == 1
    assert read_frames(ranks.stdout) == read_frames(alone.stdout), "where the script prints it"
    assert read_frames(ranks.stderr) == read_frames(alone.stderr), "where it ends the script"
    if "traced" in arguments:
        line = RAISES.partition("raise")[0].count("\n") + 1
        assert f"failed at script.py, line {line} (" in ranks.stderr, "not at a line that AutoGraph has generated"


CAUGHT = """
import logging, sys
import keras
import numpy as np

class Mine(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("in a callback")

logging.basicConfig(stream=sys.stdout, format="%(message)s")
x, y = np.ones((8, 4)), np.ones((8, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for act in (
    lambda: model.fit(x, y, verbose=0, callbacks=[Mine()]),
    lambda: model.fit(x, y[:5], verbose=0),
    lambda: model.predict(x[:, :2], verbose=0),
    lambda: model.save("there/is/none.keras"),
    lambda: open("there/is/none"),
    lambda: np.load("there/is/none.npy"),
):
    try:
        act()
    except Exception:
        logging.exception("caught")
"""


def test_what_a_script_logs_of_errors_has_the_frames_that_it_has_alone():
    alone, ranks = (
        start().check().stdout for start in (lambda: launch.run_alone(CAUGHT), lambda: launch.run(2, CAUGHT))
    )
    assert read_frames(ranks) == read_frames(alone) and ranks.count("Traceback") >= 6


THREADS = """
import queue, sys, threading
import matex_tf

def read(part):
    raise OSError(f"there is no part {part}")

def read_own(part):
    items.put(1 / part)

def start(function, part):
    thread = threading.Thread(target=function, args=(part,), name="reader")
    thread.start()
    thread.join()

items = queue.Queue()
start(read, matex_tf.rank())
start(read_own, 1 - matex_tf.rank())
if "waits" in sys.argv:
    items.get()
elif "raises" in sys.argv:
    items.get(timeout=0.1)
matex_tf.barrier()
print("trained")
"""


@pytest.mark.parametrize(
    "how, code", [("ends", 0), ("waits", exit_codes.EXIT_STALLED), pytest.param("raises", 1, marks=pytest.mark.more)]
)
def test_an_error_that_ends_a_thread_of_one_rank_is_told(how, code):
    """Alone, Python prints it, and the script goes on."""
    limits = {"MATEX_STALL_SECONDS": "1", "MATEX_ABORT_SECONDS": "2"}
    result = failed(2, THREADS, how, code=code, env=limits if how == "waits" else {})
    assert "ZeroDivisionError" in result.stderr and "rank 1 of 2" in result.stderr and "'reader'" in result.stderr
    assert ("trained" in result.stdout) == (how == "ends")
    if how == "ends":
        assert result.stderr.count("OSError: there is no part") == result.stderr.count("ZeroDivisionError") == 1


def test_an_error_leaves_what_the_script_has_written_to_its_open_files(tmp_path):
    script = """
        import io, time, h5py, netCDF4, matex_tf
        import tensorflow as tf
        wrapper = io.TextIOWrapper(io.BytesIO())
        log, raw = open('log.csv', 'w'), open('raw', 'wb')
        print('epoch 1', file=log)
        raw.write(b'123')
        h5, nc = h5py.File('data.h5', 'w'), netCDF4.Dataset('data.nc', 'w')
        h5['x'] = list(range(5000))
        nc.createDimension('t', None)
        nc.createVariable('x', 'f8', ('t',))[:] = range(100)
        records, summaries = tf.io.TFRecordWriter('data.tfrecord'), tf.summary.create_file_writer('logs')
        records.write(b'text')
        with summaries.as_default(step=1):
            tf.summary.write('loss', 0.5)
        if matex_tf.rank() > 0:
            time.sleep(200)
        raise ValueError('after epoch 1')
    """
    assert "after epoch 1" in failed(2, textwrap.dedent(script), cwd=tmp_path).output
    assert [(tmp_path / name).read_text() for name in ("log.csv", "raw")] == ["epoch 1\n", "123"]
    with h5py.File(tmp_path / "data.h5") as h5, netCDF4.Dataset(tmp_path / "data.nc") as nc:
        assert h5["x"][-1] == 4999 and nc["x"][-1] == 99
    assert b"text" in (tmp_path / "data.tfrecord").read_bytes()
    (events,) = (tmp_path / "logs").iterdir()
    assert b"loss" in events.read_bytes()


def test_open_files_do_not_prevent_the_end_after_an_error(tmp_path):
    """Nor do weak references to lost objects."""
    script = """
        import io, time, weakref, matex_tf, tensorflow
        class Broken(io.TextIOWrapper):
            def fileno(self):
                raise KeyError('no number')
        class Stuck(io.FileIO):
            def write(self, data):
                time.sleep(1000)
        lost = weakref.proxy(set())
        broken = Broken(io.BytesIO())
        stuck = io.BufferedWriter(Stuck('stuck', 'w'))
        stuck.write(b'1')
        raise ValueError('after epoch 1')
    """
    result = launch.run(2, textwrap.dedent(script), timeout=100, cwd=tmp_path)
    assert result.returncode == 1 and "after epoch 1" in result.output


def test_an_error_in_a_compiled_library_names_the_line_of_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import matex_tf, tensorflow, h5py\nh5py.File('none.h5')\n")
    assert "failed at train.py, line 2" in failed(2, script, cwd=tmp_path).output


def test_an_import_that_comes_too_late_says_which_line_to_move(tmp_path):
    script = tmp_path / "matex_tf" / "train.py"  # whose code it is does not depend on the folder's name
    script.parent.mkdir()
    script.write_text("import tensorflow as tf\nx = tf.constant(1.0)\nimport matex_tf\n")
    result = failed(2, script, module=False)
    assert f"Move the line `import matex_tf` ({script}, line 3)" in result.output


@pytest.mark.parametrize(
    "variables, names",
    [
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "MPICH"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI's mpirun"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "Slurm"),
    ],
)
def test_a_launcher_of_another_mpi_is_an_error(variables, names):
    result = launch.run_alone("import matex_tf\nprint('trained')\n", env=variables)
    assert result.returncode == 1 and "trained" not in result.stdout
    assert names in result.stderr and "sees only this one" in result.stderr and "matex run" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_allocation_is_no_launcher():
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}
    result = launch.run_alone(
        "import matex_tf, sys\nprint(matex_tf.size(), 'mpi4py.MPI' in sys.modules)\n", env=variables
    )
    assert result.check().stdout == "1 False\n"


def test_a_wrong_setting_is_told_once():
    result = failed(2, "import tensorflow\n", env={"MATEX_SCALING": "sideways"})
    assert result.output.count("expected one of strong, weak") == 1 and "Traceback" not in result.output
