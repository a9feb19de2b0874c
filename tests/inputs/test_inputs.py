"""Wrong input gets an error that says what was expected and what was found: alone, and from one rank of two."""

import numpy as np
import pytest
import tensorflow as tf
from inputs import cases

import launch
import matex_tf
from matex_tf import errors, settings
from matex_tf.readers import DataSet
from matex_tf.world import task_environment


@pytest.mark.parametrize("number", range(len(cases.PUBLIC)))
def test_public_functions(number):
    assert cases.check(*cases.PUBLIC[number]) == ""


@pytest.mark.parametrize("wrong, kind, words", cases.ARGUMENTS + cases.BY_HAND)
def test_arguments_of_readers(wrong, kind, words, tmp_path):
    given = cases.asked(cases.table(tmp_path), wrong)
    assert cases.check(lambda: DataSet(**given).training_data, kind, words) == ""


def test_batches_and_streams(tmp_path):
    data = DataSet("CSV", cases.table(tmp_path), labels="y")
    for call, kind, words in cases.BATCHES:
        assert cases.check(lambda: call(data), kind, words) == ""  # noqa: B023
    for wrong, kind, words in cases.STREAMS:
        assert cases.check(lambda: data.as_dataset(**wrong), kind, words) == ""  # noqa: B023


def test_unusual_input_is_not_wrong():
    columns = np.arange(12.0).reshape(3, 4).T[:, ::2]
    for x in (columns, np.zeros((0, 3)), np.arange(3.0).astype(">f8"), np.array([np.nan, np.inf]), np.arange(6)[::-1]):
        for result in (
            matex_tf.allreduce(x),
            matex_tf.broadcast(x, np.int64(0)),
            matex_tf.allgather(x),
            matex_tf.shard(x),
        ):
            np.testing.assert_array_equal(np.asarray(result), x)
    assert matex_tf.shard(cases.HUGE).shape == cases.HUGE.shape
    pair = matex_tf.shard(cases.Pair(np.ones(3), tf.Variable([1.0, 2.0, 3.0])))
    assert isinstance(pair, cases.Pair) and len(pair.y) == 3
    assert matex_tf.shard(()) == () and matex_tf.shard({}) == {} and matex_tf.allreduce([]) == []


NUMBERS = [one.variable for one in (*settings.TABLE, *settings.INTERNAL) if one.parse is settings._parse_count]


@pytest.mark.parametrize("setting", (*settings.TABLE, *settings.INTERNAL), ids=lambda setting: setting.name)
def test_every_setting(setting):
    free = setting.parse is str
    for text in ["?"] if not free else []:
        with pytest.raises(errors.SettingError, match=rf"{setting.variable}='\?': expected "):
            settings.Settings({setting.variable: text})
    for text in ("", "-1", "1.5", "nan", "inf", "²", "9" * 20) if setting.variable in NUMBERS else ():
        with pytest.raises(errors.SettingError, match=f"{setting.variable}='{text}': expected a whole number, 0 or"):
            settings.Settings({setting.variable: text})


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "9" * 400])
def test_variables_of_launchers_that_make_no_sense_are_no_task(text):
    for launcher in task_environment.LAUNCHERS[:6]:
        found = task_environment.find_task({launcher.size: "2", launcher.rank: text})
        assert found is None or text.startswith("9")
        assert task_environment.find_task({launcher.size: text, launcher.rank: "0"}).size == (
            int(text) if text.startswith("9") else 0
        )


SCRIPT = """
import sys, tempfile
from pathlib import Path
import numpy as np
import tensorflow as tf
import matex_tf
sys.path.insert(0, sys.argv[1])
from inputs import cases
from matex_tf.runtime import objects
from matex_tf.readers import DataSet

rank = matex_tf.rank()
path = cases.table(Path(sys.argv[2]) if rank == 0 else Path(tempfile.mkdtemp()))
bad = [cases.check(*case) for case in cases.PUBLIC]
for wrong, kind, words in cases.ARGUMENTS:
    given = cases.asked(path, wrong if rank == 1 else {})
    bad.append(cases.check(lambda: DataSet(**given), kind if rank == 1 else ValueError, words, "ReaderError"))
for wrong in cases.DIFFERENT:
    given = cases.asked(path, wrong if rank == 1 else {})
    bad.append(cases.check(lambda: DataSet(**given), ValueError, "the ranks have different arguments. Expected"))
data = DataSet("CSV", path, labels="y")
bad += [cases.check(lambda: call(data), kind, words) for call, kind, words in cases.BATCHES]
for wrong, kind, words in cases.STREAMS:
    stream = lambda: data.as_dataset(**(wrong if rank == 1 else {}))
    bad.append(cases.check(stream, kind if rank == 1 else ValueError, words, "ReaderError"))
columns = np.arange(12.0).reshape(3, 4).T[:, ::2] + rank
for x in (columns, np.zeros((0, 3)), np.arange(3.0).astype(">f8"), np.array([np.nan, np.inf])):
    everyone = objects.allgather(np.array(x), "the arrays of a test")
    np.testing.assert_array_equal(matex_tf.allreduce(x, "sum"), sum(everyone))
    np.testing.assert_array_equal(matex_tf.broadcast(x, 1), everyone[1])
    np.testing.assert_array_equal(matex_tf.allgather(x), np.concatenate(everyone))
assert matex_tf.shard(cases.HUGE).shape == (1 << 19, 1 << 20)
for each in objects.allgather([text for text in bad if text], "what went wrong"):
    print("\\n".join(each))
print("checked", len(bad), flush=True)
matex_tf.allreduce(1.0, "sum" if rank == 0 else "product")
print("this must not be reached")
"""


def test_one_rank_of_two(tmp_path):
    result = launch.run(2, SCRIPT, launch.HERE, tmp_path, timeout=200)
    number = sum(map(len, (cases.PUBLIC, cases.ARGUMENTS, cases.DIFFERENT, cases.BATCHES, cases.STREAMS)))
    assert result.returncode == 1, result.output[-4000:]
    assert result.stdout.strip().splitlines() == ["checked " + str(number)], result.output[-8000:]
    assert "rank 1 of 2 on" in result.stderr and "one of mean, sum, min, max; given 'product'" in result.stderr


@pytest.mark.parametrize("setting", ["MATEX_LOG_DIR", "MATEX_TIMELINE"])
def test_a_place_that_cannot_be_written_to_is_an_error_and_no_crash(setting, tmp_path):
    (tmp_path / "file").touch()
    result = launch.run(2, "import tensorflow\nprint('trained')\n", env={setting: str(tmp_path / "file" / "x")})
    assert result.returncode == 1 and "trained" not in result.stdout
    assert f"{setting}=" in result.stderr and "on" in result.stderr, result.stderr
