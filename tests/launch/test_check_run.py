"""`matex run --check`: what it calls equal, close and different, and a whole run of it."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import ml_dtypes
import numpy as np
import pytest

import launch
from matex_tf.files import mirror
from matex_tf.launch import check_run, cli, run_options
from matex_tf.observe import check_recorder
from matex_tf.ops import cache
from matex_tf.world import mpirun_options

SCRIPT = """
import numpy as np
import tensorflow as tf
import matex_tf

tf.random.set_seed(1)
w = tf.Variable(tf.ones([3, 1]))
x = np.random.RandomState(0).rand(40, 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
open("notes.txt", "a").write("more")
open(f"size-{matex_tf.size()}.txt", "w").write("new")
print(__file__)
print("loss 0.5 after 12 ms, size", matex_tf.size())
for x, y in data.repeat(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 2 * y) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
print("never reached")
"""


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("loss: 0.5000 - 3ms/step", "loss: 0.5001 - 17ms/step", True),
        ("loss: 0.5", "loss: 0.6", False),
        ("epoch 1", "epoch 2", False),
        ("saved to a.keras", "saved to b.keras", False),
        ("took 12 s", "took 140 s", True),
        ("[1e-3, -2]", "[1.0e-3, -2.0]", True),
    ],
)
def test_lines_that_say_the_same(one, other, same):
    assert check_run.is_same_line(one, other) is same


def test_overwritten_lines_are_read_as_they_end(tmp_path):
    text = "1/9 loss 3\r9/9 loss 2\n\n\x1b[1mdone\x1b[0m\r\r\n"
    (tmp_path / "user").mkdir()
    words = [sys.executable, "-c", f"print({text!r}, end='')"]
    assert check_run.run_once(words, ["-m", "x"], 5, tmp_path / "run", tmp_path / "user").printed == [
        "9/9 loss 2",
        "done",
    ]


def outcome(**changes):
    same = check_run.Outcome(0, 1.0, ["a 1"], {"f"}, [[0.5]], [np.ones(3)], True)
    return dataclasses.replace(same, **changes)


@pytest.mark.parametrize(
    "changes, what, verdict",
    [
        ({}, None, None),
        ({"code": 1}, "exit code", "differs"),
        ({"figures": [[0.5], [0.4]]}, "training steps", "differs"),
        ({"figures": [[0.501]]}, "loss and figures", "close"),
        ({"figures": [[0.6]]}, "loss and figures", "differs"),
        ({"figures": [[float("nan")]]}, "loss and figures", "differs"),
        ({"weights": [np.full(3, 1.1)]}, "weights", "differs"),
        ({"weights": []}, "weights", "differs"),
        ({"agree": False}, "weights of all ranks", "differs"),
        ({"printed": []}, "lines printed", "differs"),
        ({"printed": ["a 1", "b"]}, "lines printed", "differs"),
        ({"files": set()}, "files written", "differs"),
    ],
)
def test_what_differs_is_named(changes, what, verdict):
    rows = check_run.compare_outcomes(outcome(), outcome(**changes))
    assert {row.quantity: row.verdict for row in rows if row.verdict != "equal"} == ({what: verdict} if what else {})


RECORDS = """
import os
import numpy as np

folder = os.environ["MATEX_CHECK"].partition(":")[2]
for rank, weights in enumerate(WEIGHTS):
    arrays = {f"weight{index}": np.float32(weight) for index, weight in enumerate(weights)}
    np.savez(os.path.join(folder, f"rank-{rank}.npz"), figures="[[0.5]]", **arrays)
"""


@pytest.mark.parametrize(
    "weights, agree",
    [
        ([[1, 2], [1, 2]], True),
        ([[1, 2], [1, 3]], False),
        ([[1, 2], [1]], False),
        ([[1], [1, 2]], False),
        ([[0], [[0]]], False),  # another shape
        ([[1, 2]], False),  # rank 1 has recorded nothing
    ],
)
def test_ranks_agree_that_have_all_recorded_the_same_weights(tmp_path, weights, agree):
    (tmp_path / "user").mkdir()
    (tmp_path / "train.py").write_text(RECORDS.replace("WEIGHTS", repr(weights)))
    command = [sys.executable], [str(tmp_path / "train.py")]
    outcome = check_run.run_once(*command, 5, tmp_path / "run", tmp_path / "user", ranks=2)
    assert outcome.code == 0 and outcome.agree == agree
    assert outcome.figures == [[0.5]] and np.array_equal(outcome.weights, weights[0])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.complex64])
def test_weights_of_any_dtype_are_compared(tmp_path, dtype):
    for name, factor in (("one", 1), ("other", 1 + 1j if dtype is np.complex64 else 1.125)):
        recorder = check_recorder.Recorder(1, str(tmp_path / name))
        (tmp_path / name).mkdir()
        recorder.steps, recorder.weights = [[0.5]], [np.array([1, 2], dtype), np.array([1 * factor], dtype)]
        recorder.store_steps()
    one, other = (
        outcome(weights=check_run._read_record(tmp_path / name / "rank-0.npz")[1]) for name in ("one", "other")
    )
    verdicts = [check_run.compare_outcomes(one, compared)[3].verdict for compared in (one, other)]
    assert verdicts == ["equal", "differs"]


def test_folders_of_which_there_is_no_copy_are_named():
    shared = outcome(shared=["data/images"])
    rows = check_run.compare_outcomes(shared, shared)
    assert "less those in data/images: too many files for a copy" in rows[-1].note and rows[-1].verdict == "equal"


def test_what_is_the_users_own_is_used_only_where_told(tmp_path, monkeypatch, capsys):
    user = tmp_path / "user"
    (user / "data").mkdir(parents=True)
    (user / "best.h5").write_text("x" * 100)
    (user / "data" / "small").write_text("x")
    (tmp_path / "more.py").write_text("open('best.h5', 'a').write('more')")
    command = [sys.executable], [str(tmp_path / "more.py")]
    check_run.run_once(*command, 5, tmp_path / "copied", user)
    assert (user / "best.h5").read_text() == "x" * 100
    monkeypatch.setattr(check_run, "ALL_COPIED_BYTES", 50)
    monkeypatch.setattr(mirror, "ENTRIES", 2)
    with pytest.raises(click.UsageError, match="too large for one: data, best.h5. With --share"):
        check_run.run_once(*command, 5, tmp_path / "refused", user)
    with monkeypatch.context() as as_other_user:
        as_other_user.setattr(check_run.os, "access", lambda _, mode: mode != os.W_OK)
        with pytest.raises(click.UsageError, match="for one: data. With"):
            check_run.run_once(*command, 5, tmp_path / "read-only", user)
    assert (user / "best.h5").read_text() == "x" * 100 and not capsys.readouterr().out
    monkeypatch.setattr(mirror, "COPIED_BYTES", 50)
    outcome = check_run.run_once(*command, 5, tmp_path / "shared", user, may_share=True)
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("remains: data, best.h5") and last.startswith(f"matex: {user / 'best.h5'} has changed")
    assert list(outcome.files) == ["best.h5"] and outcome.shared == ["data"]


BESIDE = "import pathlib\npathlib.Path(__file__).with_suffix('.log').write_text(__name__)\n"


@pytest.mark.parametrize("target", [["tools/train.py"], ["{}/tools/train.py"], ["-m", "tools.train"]])
def test_what_a_script_and_its_modules_write_beside_themselves_is_not_among_the_users_files(tmp_path, target):
    user = tmp_path / "user"
    (user / "tools").mkdir(parents=True)
    (user / "tools" / "train.py").write_text("import helper\n" + BESIDE)
    for place in ("", "tools"):  # beside a script, and in the folder in which a module is started
        (user / place / "helper.py").write_text(BESIDE)
    before = sorted(user.rglob("*"))
    words = [word.format(user) for word in target]
    outcome = check_run.run_once([sys.executable, "-m", "matex_tf"], words, 5, tmp_path / "run", user)
    helper = "helper.log" if target[0] == "-m" else "tools/helper.log"
    assert outcome.code == 0 and sorted(outcome.files) == [helper, "tools/train.log"], outcome
    assert sorted(user.rglob("*")) == before


def test_a_script_that_uses_what_lies_above_the_folder_is_told_that_it_is_not_there(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").touch()
    for name in ("user", "shared"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "user")
    Path("train.py").write_text("open('../data')")
    command = [sys.executable]
    assert check_run.check_script(1, ["train.py"], command, command, 5, parent=tmp_path / "shared") == 1
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "failed alone" in line]
    assert f"as a copy at {tmp_path / 'shared' / 'matex-check-'}" in told and "start from the uppermost folder" in told


@pytest.mark.parametrize("options, is_elsewhere", [([], False), (["--host", "localhost:2"], True)])
def test_copies_lie_where_all_hosts_see_them(tmp_path, monkeypatch, options, is_elsewhere):
    """All hosts get the variable that names them, too, and no run gets the files of the user's own runs."""
    calls, names = [], {"MATEX_STATE", "MATEX_RECORD", "MATEX_TIMELINE", "MATEX_LOG_DIR"}
    monkeypatch.setattr(check_run, "check_script", lambda *given: calls.append((given, names & os.environ.keys())))
    for name in names:
        monkeypatch.setenv(name, str(tmp_path / "own"))
    for name in mpirun_options.ALLOCATIONS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "x.py").touch()
    assert not cli.main(["run", "--check", *options, str(tmp_path / "x.py")])
    [((_, _, _, together, *_, parent), left)] = calls
    assert parent == (cache.find_cache_folder() if is_elsewhere else None) and not left
    assert ("MATEX_CHECK" in together) == is_elsewhere and not names & set(together)


def test_what_check_is_asked():
    asked = cli.parse_run("--check --steps 7 train.py --steps 3".split())
    assert asked == run_options.Run(2, ["train.py", "--steps", "3"], check=True, steps=7)
    assert cli.parse_run(["--check", "-n", "3", "t.py"]).ranks == 3
    assert cli.parse_run(["--check", "--share", "t.py"]).share
    with pytest.raises(click.UsageError, match="--share goes with --check"):
        cli.parse_run(["-n", "3", "--share", "t.py"])
    with pytest.raises(click.UsageError, match="--steps expects the number of steps"):
        cli.parse_run(["--check", "--steps", "few", "t.py"])


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_ends_the_check_ends_its_run(tmp_path, number, code):
    for name in ("user", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "user" / "x.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'process')!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    )
    words = [sys.executable, "-m", "matex_tf.launch.cli", "run", "--check", "x.py"]
    environment = launch.environment({"TMPDIR": str(tmp_path / "temporary")})
    with subprocess.Popen(words, cwd=tmp_path / "user", env=environment, stdout=subprocess.DEVNULL) as checking:
        until = time.monotonic() + 60
        while not (tmp_path / "process").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.1)
        checking.send_signal(number)
    assert checking.returncode == code
    assert not os.path.exists(f"/proc/{(tmp_path / 'process').read_text()}")
    assert not list((tmp_path / "temporary").glob("matex-check-*"))


def test_a_script_is_compared_with_itself(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "notes.txt").write_text("mine")
    words = [sys.executable, "-m", "matex_tf.launch.cli", "run", "--check", "--steps", "4", "train.py"]
    result = launch.execute(words, launch.environment(), 200, tmp_path)
    assert result.returncode == 1, result.output
    verdicts = dict(re.findall(r"^(.{20}\S*) .*   (equal|close|differs)\b", result.stdout, re.MULTILINE))
    verdicts = {what.strip(): verdict for what, verdict in verdicts.items()}
    assert verdicts == {
        "exit code": "equal",
        "training steps": "equal",
        "loss and figures": "equal",
        "weights": "equal",
        "weights of all ranks": "equal",
        "lines printed": "differs",
        "files written": "differs",
    }, result.output
    assert "training steps                             4" in result.stdout
    assert "first: 'loss 0.5 after" in result.stdout, "the script has the same path in both runs"
    assert "check: differs: lines printed, files written" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "train.py"]
    assert (tmp_path / "notes.txt").read_text() == "mine", "the user's own files are left alone"
