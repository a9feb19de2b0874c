"""`matex plan --check` runs a plan's script, and prints and writes what is measured beside what was predicted."""

import json
import tempfile
from pathlib import Path

import pytest
from planner_plans import a_plan

import launch
from matex_tf.launch.planning import ranks
from matex_tf.ops import cache
from matex_tf.planner import plan_file
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.predict import Predictor
from matex_tf.world import mpirun_options

CASE = Path(__file__).with_name("check_case.py")
SECONDS = 0.05
"""Of each step of the script, at least."""


@pytest.mark.timeout(300)
def test_measured_steps_stand_beside_predictions(tmp_path):
    made = a_plan(script=(str(CASE), str(SECONDS)))
    plan_file.save_plan(made, tmp_path / "plan.json")
    words = ["plan", "--check", "-n", "1,2", "--json", tmp_path / "found.json", tmp_path / "plan.json"]
    ended = launch.matex(*words, cwd=tmp_path).check()
    heading, *lines = ended.stdout.splitlines()
    assert heading.split() == ["ranks", "predicted", "ms", "measured", "ms", "off"]
    assert [int(line.split()[0]) for line in lines] == [1, 2]
    for line, one in zip(lines, json.loads((tmp_path / "found.json").read_text())):
        wanted = Predictor(made).predict_step(one["ranks"])
        assert (one["predicted"], one["low"], one["high"]) == (wanted.step, wanted.low, wanted.high)
        assert SECONDS < one["measured"] < 20 * SECONDS, "a step that sleeps, on a machine with other work"
        assert one["off"] == pytest.approx(one["predicted"] / one["measured"] - 1)
        _, predicted, measured, off = line.split()
        assert float(predicted) == pytest.approx(one["predicted"] * 1e3, abs=0.051)
        assert float(measured) == pytest.approx(one["measured"] * 1e3, abs=0.051)
        assert float(off.rstrip("%")) == pytest.approx(100 * one["off"], abs=0.051)
    assert "20 of 60 steps were recorded" in ended.stderr


@pytest.mark.timeout(200)
def test_a_run_that_fails_is_said_and_is_the_exit_code(tmp_path):
    plan_file.save_plan(a_plan(script=(str(CASE), "never")), tmp_path / "plan.json")
    words = ["plan", "--check", "-n", "2", "--json", tmp_path / "found.json", tmp_path / "plan.json"]
    ended = launch.matex(*words, cwd=tmp_path)
    assert ended.returncode == 1 and "could not convert string to float: 'never'" in ended.stderr
    (one,) = json.loads((tmp_path / "found.json").read_text())
    assert one["ranks"] == 2 and "it failed with exit code" in one["why_not"]


@pytest.mark.parametrize("options, job, is_here", [([], "", True), (["--host", "a:2"], "", False), ([], "7", False)])
def test_ranks_on_other_hosts_share_a_folder(tmp_path, monkeypatch, options, job, is_here):
    """Also where a batch system chooses the hosts."""
    for name in mpirun_options.ALLOCATIONS:
        monkeypatch.delenv(name, raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setattr(cache, "find_cache_folder", lambda: tmp_path)
    calls = []
    monkeypatch.setattr(phantoms, "measure_real", lambda *given, is_here: calls.append((given[2].parent, is_here)))
    plan = a_plan()
    ranks.time_real_run(plan, Predictor(plan).predict_step(2), options, lambda *_: [])
    assert calls == [(Path(tempfile.gettempdir()) if is_here else tmp_path, is_here)]
