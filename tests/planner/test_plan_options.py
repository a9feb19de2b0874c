"""The words of `matex plan`, and which sizes are measured."""

import click
import pytest

from matex_tf import memory
from matex_tf.launch.cli import main, matex
from matex_tf.launch.option_types import BYTES, NETWORK, RANKS, TIME
from matex_tf.launch.planning.requests import read_options
from matex_tf.launch.planning.sizes import choose_sizes

plan = matex.get_command(click.Context(matex), "plan")


@pytest.mark.parametrize(
    "text, ranks",
    [
        ("4", [4]),
        ("1,2,4,...,1024", [2**i for i in range(11)]),
        ("2, 4, 6, ..., 10", [2, 4, 6, 8, 10]),
        ("1,2,...,5", [1, 2, 4, 5]),
        ("8,2,2", [2, 8]),
    ],
)
def test_numbers_of_ranks(text, ranks):
    assert RANKS.convert(text, None, None) == ranks


def test_sizes_and_times():
    assert [BYTES.convert(text, None, None) for text in ("16GiB", "1.5k", "7B", "2TB")] == [16 << 30, 1500, 7, 2e12]
    assert [TIME.convert(text, None, None) for text in ("6h", "90 min", "20")] == [21600, 5400, 20]


@pytest.mark.parametrize(
    "kind, text",
    [
        (RANKS, "0"),
        (RANKS, "...,4"),
        (RANKS, "many"),
        (RANKS, "1,2,...,²"),
        (RANKS, "1,2,3,...,100000000000"),
        (RANKS, "9" * 5000),
        (BYTES, "big"),
        (BYTES, "12"),
        (BYTES, "1e9"),
        (TIME, "0h"),
        (NETWORK, "x"),
    ],
)
def test_what_is_none_of_them_is_refused(kind, text):
    with pytest.raises(click.UsageError, match="expect"):
        kind.convert(text, None, None)


def test_the_measured_sizes_are_the_ends_and_the_middle():
    assert choose_sizes([2**i for i in range(11)], 2) == [1, 2, 32, 1024]
    assert choose_sizes([2**i for i in range(11)], 16) == [1, 16, 128, 1024]
    assert choose_sizes([2], 2) == [1, 2] and choose_sizes([1], 1) == [1]


def test_memory_is_a_size_or_what_this_host_leaves(monkeypatch):
    with plan.make_context("plan", ["--memory", "here", "--ranks-per-host", "4", "train.py"]) as context:
        monkeypatch.setattr(memory, "measure_free", lambda: 8 << 30)
        assert read_options(context.params).memory == 2 << 30
    with plan.make_context("plan", ["--memory", "3GiB", "train.py"]) as context:
        assert read_options(context.params).memory == 3 << 30


def test_errors_of_the_command(capsys, tmp_path):
    assert main(["plan"]) == 2 and "no script is named" in capsys.readouterr().err
    assert main(["plan", "nowhere.py"]) == 2 and "no file nowhere.py" in capsys.readouterr().err
    assert main(["plan", "--check", str(tmp_path / "plan.json")]) == 1


def test_what_stands_after_the_plan_of_a_check_is_refused(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    assert main(["plan", "--check", path, "--host", "a,b"]) == 2
    assert "--host must precede it" in capsys.readouterr().err
