"""Runs whose slices change: the result is that of the script alone, and rows go where they take least time."""

import functools
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch
from matex_tf.monitor import recording
from matex_tf.monitor.report import page
from matex_tf.ops import build
from matex_tf.runtime.hooks import find_version

CASES = Path(__file__).with_name("adapted_cases.py")
FORCED = ["arrays", "repeated", "mapped", "loop", "inner_loop", "met", "loop_met"]
OF_KERAS3 = ["accumulated", "single_batches"] if find_version("keras") >= "3" else []
MEASURED = ["gone", "slow_loop"]
ON = {**launch.ALL_FILES, "MATEX_ADAPT": "on"}
ONE_SERVES = {"MATEX_STRATEGY": "servers:1:only"}
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


def run_alone(folder, names, env=None):
    launch.run_alone(CASES, folder, *names, env=env).check()
    return dict(np.load(folder / "rank-0.npz"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the script gives alone, by names of cases."""
    return functools.cache(lambda *names: run_alone(tmp_path_factory.mktemp("alone"), names))


def together(ranks, folder, names, env):
    """How the launch ended, and what each rank found."""
    ended = launch.run(ranks, CASES, folder, *names, env={**ON, **env}, timeout=300).check()
    return ended, [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(ranks)]


def assert_same(parts, want):
    wrong = [
        f"{name} on rank {rank}: {part[name]} in place of {want[name]}"
        for rank, part in enumerate(parts)
        for name in part
        if name in want and not name.endswith("|rows") and not close(part[name], want[name])
    ]
    assert not wrong, "\n".join(wrong)


def rows(parts, name):
    """Of each step how many rows each rank has computed."""
    return np.stack([part[f"{name}|rows"] for part in parts], axis=1)


def assert_cut_otherwise(parts, names):
    for name in names:
        found = rows(parts, name)
        assert len({tuple(step) for step in found}) >= 3, f"{name} was hardly ever cut otherwise:\n{found}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "forced, measured",
    [
        (["arrays", "inner_loop", "loop_met", *OF_KERAS3], ["gone"]),
        pytest.param([*FORCED, *OF_KERAS3], MEASURED, marks=pytest.mark.more),
    ],
)
def test_the_result_is_that_of_the_script_alone_and_rows_go_where_they_take_least_time(
    alone, forced, measured, tmp_path
):
    names = forced + measured
    ended, parts = together(2, tmp_path, names, {"MATEX_RECORD": str(tmp_path / "run")})
    assert_same(parts, alone(*names))
    assert_cut_otherwise(parts, forced)
    by_clock = rows(parts, "gone").tolist()
    assert all(step == [8, 8] for step in by_clock[:60]), "without a slow rank nothing changes"
    assert [12, 4] in by_clock[60:160]
    assert by_clock[-1] == [8, 8], "equal again once it is as fast as the others"
    if "slow_loop" in measured:
        assert rows(parts, "slow_loop")[-2][1] < 7, "a rank that takes longer has fewer rows"
    changes = [line.removeprefix("matex_tf: ") for line in ended.stderr.splitlines() if "--adapt:" in line]
    assert len(changes) > 6 and all(line.startswith("--adapt: of each 16 rows, rank 0") for line in changes)
    run = recording.open_run(tmp_path / "run")
    marks = [one["event"] for one in run.starts[0].events if "--adapt" in str(one.get("event"))]
    assert changes == list(dict.fromkeys(marks))
    report = page.format_page(run)
    assert all(mark in report for mark in marks)


@pytest.mark.more
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "ranks, env",
    [
        pytest.param(3, {}, id="3"),
        pytest.param(3, {"MATEX_STRATEGY": "sharded"}, id="3-sharded"),
        pytest.param(3, ONE_SERVES, id="3-one-serves"),
        pytest.param(2, {"MATEX_MICROBATCH": "3"}, id="2-in-parts"),
        pytest.param(2, LEGACY, id="2-keras2"),
    ],
)
def test_the_result_is_that_of_the_script_alone_on_other_ranks(alone, ranks, env, tmp_path):
    names = FORCED if env == LEGACY else [*FORCED, *OF_KERAS3]
    if env == LEGACY:
        (tmp_path / "alone").mkdir()
        want = run_alone(tmp_path / "alone", names, env)
    else:
        want = alone(*names)
    _, parts = together(ranks, tmp_path, names, env)
    assert_same(parts, want)
    assert_cut_otherwise(parts, names)
    if env == ONE_SERVES:
        # The first step may be called as the script alone calls it; then there is one row, of weight 0.
        assert {int(step[-1]) for name in names for step in rows(parts, name)[1:]} == {1}


@pytest.mark.more
@pytest.mark.timeout(600)
def test_what_xla_compiles_gives_the_result_of_the_script_alone(alone, tmp_path):
    build.build_xla()
    ended, parts = together(2, tmp_path, ["compiled"], {})
    assert_same(parts, alone("compiled"))
    assert_cut_otherwise(parts, ["compiled"])
    assert "is turned off" not in ended.stderr
