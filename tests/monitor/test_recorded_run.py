"""A run of two ranks that is recorded: samples of both, epochs, who is waited for, the end; and what hinders it."""

from __future__ import annotations

import json

import pytest

import launch
from matex_tf.monitor import progress, recording, waits
from matex_tf.monitor.report import page
from matex_tf.observe import balance

SCRIPT = """
import sys
import time
import keras
import matex_tf
import numpy as np

class Late(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if "late" in sys.argv:
            time.sleep(0.05 * matex_tf.rank())

random = np.random.default_rng(0)
x, y = random.standard_normal((640, 16)), random.standard_normal((640, 1))
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=2, validation_split=0.1, verbose=0, callbacks=[Late()])
if "fail" in sys.argv:
    raise RuntimeError("the end comes early")
print("trained")
"""
ROWS = 2 * 576


def test_a_run_is_recorded_rank_by_rank(tmp_path):
    env = {"MATEX_RECORD": str(tmp_path / "run"), "MATEX_RECORD_SECONDS": "0.05"}
    assert "trained" in launch.run(2, SCRIPT, "late", env=env).check().stdout
    run = recording.open_run(tmp_path / "run")
    (start,) = run.starts
    ranks = recording.read_all(start)
    assert list(ranks) == [0, 1] and start.size == 2
    for series in ranks.values():
        assert series.ended == "ended" and series["rows"][-1] == ROWS and series["up"][-1] == ROWS // 16
        assert series["cpu"][-1] > series["cpu"][0] and min(series["mem"]) > 2**20
        assert len(series) >= 10
    done = progress.list_epochs(start.events)
    assert [(one.number, one.of) for one in done] == [(1, 2), (2, 2)]
    assert set(done[0].logs) == {"loss", "val_loss"}
    slow = balance.find_slowest(waits.compute_mean_steps(ranks))
    assert slow is not None and slow[0] == 1 and slow[1] > 0.02
    assert start.profile.startswith("matex_tf: profile of 2 ranks on 1 host")
    assert "wait for rank 1" in page.format_page(run)


READING = """
import os
import sys
import time
import keras
import numpy as np
import tensorflow as tf
import matex_tf

def wait(number):
    time.sleep(0.01)
    return number

def load(path):
    row = tf.io.decode_raw(tf.io.read_file(path), tf.float32)[:16]
    return tf.ensure_shape(row, [16]), tf.zeros([1])

model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
paths = [os.path.join(sys.argv[1], f"{number}") for number in range(32)]
rows = tf.data.Dataset.from_tensor_slices(paths).map(load).batch(8)
model.fit(rows, epochs=2, verbose=0)
late = rows.map(lambda x, y: (tf.ensure_shape(x + tf.py_function(wait, [0.0], tf.float32), [None, 16]), y))
for x, y in late:
    model.train_on_batch(x, y)
step = tf.function(lambda iterator: model.train_step(next(iterator)))
iterator = iter(late)
for _ in range(4):
    step(iterator)
"""


def test_what_each_rank_reads_and_waits_for_its_input_is_recorded(tmp_path):
    """In `fit` each rank reads its part of 32 files, twice, and all of the first batch. In a loop, and in steps that
    take batches by themselves, it reads all files, since a map of Python needs whole batches, and waits for it.
    """
    size = 500_000
    for number in range(32):
        (tmp_path / str(number)).write_bytes(bytes(size))
    env = {"MATEX_RECORD": str(tmp_path / "run"), "MATEX_RECORD_SECONDS": "0.05"}
    launch.run(2, READING, tmp_path, env=env).check()
    (start,) = recording.open_run(tmp_path / "run").starts
    for series in recording.read_all(start).values():
        assert series["in"][0] == 0 and list(series["in"]) == sorted(series["in"])
        assert 8 * 0.01 <= series["in"][-1] <= series["t"][-1] - series["t"][0]
        assert 96 <= series.compute_growth("read") / size <= 112


def test_without_the_setting_nothing_is_recorded_and_no_thread_samples(tmp_path):
    script = """
import threading
import matex_tf
print(sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("matex_tf")))
"""
    found = launch.run(2, script, cwd=tmp_path).check()
    assert "monitor" not in found.stdout and "watchdog" in found.stdout


def test_a_run_that_fails_says_so_and_a_second_start_is_beside_the_first(tmp_path):
    env = {"MATEX_RECORD": str(tmp_path / "run"), "MATEX_RECORD_SECONDS": "0.05"}
    failed = launch.run(2, SCRIPT, "fail", env=env)
    assert failed.returncode != 0 and "the end comes early" in failed.stderr
    launch.run(2, SCRIPT, env=env).check()
    run = recording.open_run(tmp_path / "run")
    assert [start.number for start in run.starts] == [1, 2]
    ends = [{series.ended for series in recording.read_all(start).values()} for start in run.starts]
    assert "ended by an error" in ends[0] and ends[1] == {"ended"}
    for start in run.starts:
        for path in start.files.values():
            for line in path.read_text().splitlines():
                json.loads(line)


@pytest.mark.parametrize("where", ["file", "/dev/full/run"])
def test_a_folder_that_cannot_be_written_ends_no_run_and_is_said_once(tmp_path, where):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / where / "run")
    found = launch.run(2, SCRIPT, env={"MATEX_RECORD": folder}).check()
    assert "trained" in found.stdout
    assert found.stderr.count("the run is not recorded: rank 0 cannot write there") == 1


KILLED = """
import os
import signal
import sys
import keras
import matex_tf
import numpy as np

class Killed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and matex_tf.rank() == 1 and not os.path.exists(sys.argv[1]):
            os.close(os.open(sys.argv[1], os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)

x, y = np.zeros((64, 4)), np.zeros((64, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Killed()])
"""


def test_a_restart_is_a_second_start_and_is_told(tmp_path):
    env = {"MATEX_RECORD_SECONDS": "0.05", "MATEX_STATE": str(tmp_path / "state"), "MATEX_OUTPUT": "all"}
    words = ["--restarts", 1, "--record", tmp_path / "run", launch.script_file(KILLED), tmp_path / "killed"]
    launch.matex_run(2, *words, env=env).check()
    run = recording.open_run(tmp_path / "run")
    assert [start.number for start in run.starts] == [1, 2]
    assert [bool(series.ended) for series in recording.read_all(run.starts[0]).values()][1] is False
    assert {series.ended for series in recording.read_all(run.starts[1]).values()} == {"ended"}
    told = [one["event"] for one in run.events]
    assert "restart 1 of 1" in told[1] and told[-1] == "ended with exit code 0"
    assert [one.number for one in progress.list_kept_epochs(run.starts)] == [1, 2, 3, 4]
    text = page.format_page(run)
    assert "restart 1 of 1" in text and "start 2, on 2 ranks on 1 host" in text
