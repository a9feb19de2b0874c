"""What is kept of a run: plain data only, two generations, whole or not at all, for no one else's eyes."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import launch
from matex_tf.resilience import async_writer, callback_state, serialization, state, state_files
from matex_tf.runtime import temp_folders, watchdog
from matex_tf.runtime.hooks import find_version

VALUES = [
    None, True, 3, 2.5, float("inf"), "text", [1, [2]], (1, "a"), {"a": 1, 2: (3.0, None)}, {1, 2}, np.float32(1.5),
    np.array(["a", "bcd"]), np.array([b"ab"]), np.array([1.5, -2.0], ">f4"), np.array(["2026-11-22"], "datetime64[D]"),
    np.arange(6, dtype="int8").reshape(2, 3), np.zeros((0, 4)), np.array(7.25), np.arange(6.0)[::2], np.less,
]  # fmt: skip

CYCLE: list = []
CYCLE.append(CYCLE)


def same(one, other):
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
        )
    return type(one) is type(other) and one == other


def store(folder, kind, number, content):
    folder.write_file(kind, number, serialization.pack_value(content))


def test_what_is_written_is_read(tmp_path):
    folder = state_files.Folder(str(tmp_path / "state"))
    store(folder, "state", 1, VALUES)
    number, found = folder.find_newest()
    assert number == 1 and same(VALUES, found)
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    assert os.stat(folder.locate_file("state-000001")).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "value",
    [
        object(),
        open,
        np.array([object()]),
        [lambda: 0],
        os.system,
        np.random.default_rng(1),
        np.zeros(2, [("a", "f4"), ("b", "i8")]),
        np.ma.masked_less(np.arange(3), 1),
        CYCLE,
    ],
)
def test_what_is_not_plain_is_not_kept(value):
    assert not serialization.is_plain(value)


@pytest.mark.parametrize("packed", [{"function": ["os", "system"]}, {"function": ["subprocess", "run"]}, {"other": 1}])
def test_nothing_but_data_comes_out_of_a_file(packed):
    with pytest.raises(serialization.NotPlain):
        serialization.unpack_value(serialization.Packed(packed, []))


def test_what_is_packed_does_not_change_afterwards():
    array = np.zeros(3)
    packed = serialization.pack_value([array])
    array += 1
    assert same(serialization.unpack_value(packed), [np.zeros(3)])


def test_others_who_hold_a_list_see_what_is_put_back():
    held, table = [1, 2, 3], {"a": 1}
    assert serialization.restore_value(held, [4]) is held and held == [4]
    assert serialization.restore_value(table, {"b": 2}) is table and table == {"b": 2}
    assert serialization.restore_value(1, 5) == 5


def test_a_state_is_restored_twice():
    """At the beginning of training, and after Keras has begun the interrupted epoch again."""
    callback = keras.callbacks.Callback()
    callback.lazy, callback.counts, saved = None, {}, [("Callback", {"lazy": {"best": 1}, "counts": {"epochs": [0]}})]
    for _ in range(2):
        callback_state.restore_states([callback], saved)
        assert callback.lazy == {"best": 1} and callback.counts == {"epochs": [0]}
        callback.counts["epochs"].append(1)


def test_a_log_of_a_resumed_call_is_overwritten_by_the_next_call(tmp_path):
    path = tmp_path / "log.csv"
    start = "epoch,loss\n0,1.0\n"
    path.write_text(start + "1,0.5\n")
    logger = keras.callbacks.CSVLogger(str(path))

    def log_epoch():
        logger.on_train_begin()
        logger.keys = ["loss"]
        logger.on_epoch_end(1, {"loss": 0.25})
        logger.on_train_end()
        return path.read_text().split()

    changed = callback_state.continue_logs([keras.callbacks.Callback(), logger], [None, len(start)], has_lines=True)
    assert log_epoch() == ["epoch,loss", "0,1.0", "1,0.25"]
    callback_state.leave_logs(changed)
    assert log_epoch() == ["epoch,loss", "1,0.25"]


def test_two_generations_stay(tmp_path):
    folder = state_files.Folder(str(tmp_path / "state"))
    for number in range(1, 5):
        store(folder, "state", number, number)
        store(folder, "end", number, number)
    assert folder.list_numbers("state") == [3, 4] and folder.list_numbers("end") == [1, 2, 3, 4]
    assert folder.find_newest() == (4, 4)
    folder.remove_folder()
    assert not os.path.exists(folder.path)


@pytest.mark.parametrize("damage", ["a bit", "the end", "the beginning", "all", "of another kind"])
def test_of_a_damaged_state_the_one_before_is_taken(tmp_path, damage):
    folder = state_files.Folder(str(tmp_path / "state"))
    content = {"weights": np.arange(1000.0)}
    for number in (1, 2):
        store(folder, "state", number, {**content, "number": number})
    path = folder.locate_file("state-000002")
    data = bytearray(Path(path).read_bytes())
    if damage == "a bit":
        data[len(data) // 2] ^= 1
    with open(path, "wb") as file:
        file.write(
            {"the end": data[:-1], "the beginning": data[1:], "all": b"", "of another kind": b"x" * 500}.get(
                damage, data
            )
        )
    number, found = folder.find_newest()
    assert number == 1 and found["number"] == 1 and same(found["weights"], content["weights"])
    with open(folder.locate_file("state-000001"), "wb"):
        pass
    assert folder.find_newest() == (-1, None)


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    folder = state_files.Folder(str(tmp_path / "state"))
    store(folder, "state", 1, "old")
    monkeypatch.setattr(state_files.struct, "pack", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        store(folder, "state", 1, "new")
    monkeypatch.undo()
    assert folder.find_newest() == (1, "old") and os.listdir(folder.path) == ["state-000001"]


def test_numbers_that_only_tensorflow_has_a_name_for(tmp_path):
    import tensorflow as tf

    folder = state_files.Folder(str(tmp_path / "state"))
    value = np.arange(3).astype(tf.bfloat16.as_numpy_dtype)
    store(folder, "state", 1, value)
    assert same(folder.find_newest()[1], value)


def test_one_process_holds_a_folder(tmp_path):
    folder = state_files.Folder(str(tmp_path / "state"))
    held = folder.hold_lock()
    assert held is not None and folder.hold_lock() is None
    os.close(held)
    assert folder.hold_lock() is not None
    folder.remove_folder()
    assert not os.path.exists(folder.path)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(state_files.Foreign, match="chmod go-w"):
        state_files.Folder(str(tmp_path / "open"))
    (tmp_path / "mine").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(state_files.Foreign, match="belongs to another user"):
        state_files.Folder(str(tmp_path / "mine"))


def test_a_file_of_another_user_is_not_read(tmp_path, monkeypatch):
    folder = state_files.Folder(str(tmp_path / "state"))
    store(folder, "state", 1, "theirs")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert folder.find_newest() == (-1, None)


@pytest.mark.skipif(find_version("keras") < "3", reason="Keras 2 adds up no gradients")
@pytest.mark.parametrize("wrap", [lambda own: own, lambda own: keras.optimizers.LossScaleOptimizer(own)])
def test_gradients_that_are_added_up_are_kept_with_their_optimizer(wrap):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(wrap(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)), "mse")
    model.optimizer.build(model.trainable_variables)
    kept = state.group_variables(model)["optimizer 0"]
    assert sum("gradient_accumulator" in one.path for one in kept) == 2


def test_a_folder_that_another_run_has_left_behind_or_removed_is_held_by_the_next(tmp_path):
    first, second = state_files.Folder(str(tmp_path / "state")), state_files.Folder(str(tmp_path / "state"))
    held = first.hold_lock()
    assert held is not None and second.hold_lock() is None
    first.remove_folder()
    os.close(held)
    assert not os.path.exists(first.path)
    held = second.hold_lock()
    assert held is not None and first.hold_lock() is None
    assert stat.S_IMODE(os.stat(second.path).st_mode) == 0o700
    os.close(held)


INTERRUPTED = """
import itertools, signal
from matex_tf.resilience import async_writer

class Folder:
    path = "folder"

    def __init__(self):
        self.written = []

    def write_file(self, kind, number, packed):
        self.written.append(number)

def flush_writer(number, frame):
    global inside, flushed
    if not inside:
        inside = True
        writer.flush()
        inside, flushed = False, flushed + 1

inside, flushed, folder = False, 0, Folder()
writer = async_writer.Writer(folder)
signal.signal(signal.SIGALRM, flush_writer)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in itertools.count():
    writer.write("state", number, None)
    if flushed > 300:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
writer.flush()
assert folder.written == list(range(number + 1))
"""


def test_a_writer_is_waited_for_wherever_a_signal_comes():
    """A signal's handler runs between any two steps of the thread that trains, also within those that order a write."""
    launch.execute([sys.executable, "-c", INTERRUPTED], launch.environment({}), 60).check()


def test_other_ranks_wait_longer_for_a_rank_whose_disk_is_slow():
    """Not only for the last state of a run, but for each that waits for its turn."""
    excused = []

    def write_file(*order):
        time.sleep(0.2)
        excused.extend(what for what, _ in watchdog._activities)

    writer = async_writer.Writer(SimpleNamespace(path="folder", write_file=write_file))
    for number in range(3):
        writer.write("state", number, None)
    assert excused == ["saving the state of the run to folder"]
    writer.flush()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_folder_on_a_file_system_without_locks_is_used_and_that_is_told(tmp_path, monkeypatch, number):
    def flock(handle, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(temp_folders.fcntl, "flock", flock)
    told = []
    held = state_files.Folder(str(tmp_path / "state")).hold_lock(told.append)
    assert held is not None and [error.errno for error in told] == [number]
    os.close(held)
