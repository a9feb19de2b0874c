"""What a batch costs to read and decode: measured of a rank of so many, and predicted for others."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from planner_plans import a_plan
from rich.console import Console

import launch
from matex_tf.planner import report
from matex_tf.planner.compute import Compute
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.plan_file import Input, load_plan, save_plan
from matex_tf.planner.predict import Predictor

CASE = Path(__file__).with_name("input_case.py")
RANKS = (1, 2, 3, 4, 8, 16, 64)


def plan_with(cost, **changed):
    """A plan whose sizes have the input that `cost` gives, of ranks and rows."""
    plan = a_plan(**changed)
    return replace(plan, sizes=tuple(replace(one, input=cost(one.ranks, one.rows)) for one in plan.sizes))


def test_of_shared_input_each_rank_has_its_rows_and_what_is_done_for_all():
    order, row, size = 2e-3, 1e-3, 1e5
    compute = Compute(plan_with(lambda _, rows: Input(order + row * rows, size * rows)))
    for ranks in RANKS:
        found = compute.estimate_input(ranks)
        rows = -(-64 // ranks)
        assert found.seconds == pytest.approx(order + row * rows) and found.bytes == pytest.approx(size * rows)


def test_input_that_is_whole_on_each_rank_costs_each_the_same_and_bounds_the_step():
    compute = Compute(plan_with(lambda *_: Input(0.1, 6.4e6)))
    for ranks in RANKS:
        assert compute.estimate_input(ranks) == Input(pytest.approx(0.1), pytest.approx(6.4e6))
        cores = 2 / compute.count_copies(ranks)
        assert compute.estimate_seconds(ranks) >= 0.1 / cores


def test_input_that_a_step_hides_changes_no_step():
    """It is in the measured steps already."""
    with_input, without = Predictor(plan_with(lambda _, rows: Input(1e-5 * rows, 100.0))), Predictor(a_plan())
    for ranks in RANKS:
        found, other = with_input.predict_step(ranks), without.predict_step(ranks)
        assert (found.step, found.low, found.high) == (other.step, other.low, other.high)
        assert found.input is not None and other.input is None


def test_with_weak_scaling_whole_input_grows_with_the_ranks():
    compute = Compute(plan_with(lambda ranks, _: Input(1e-3 * ranks, 1e5 * ranks), scaling="weak"))
    assert [compute.estimate_input(ranks).seconds for ranks in RANKS] == pytest.approx([1e-3 * one for one in RANKS])


def test_a_plan_keeps_it_in_its_file(tmp_path):
    for plan in (plan_with(lambda _, rows: Input(1e-3, 5.0 * rows)), a_plan()):
        save_plan(plan, tmp_path / "plan.json")
        assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    "kind, share",
    [
        ("fit", 1 / 4),
        ("short fit", 1 / 4),
        ("whole fit", 1),
        ("short whole loop", 1),
        pytest.param("whole loop", 1, marks=pytest.mark.more),
    ],
)
def test_what_a_batch_costs_is_measured_of_a_rank_of_four(kind, share, tmp_path):
    """A batch is 16 files. Batches worked on ahead count once, also if all batches of an epoch are."""
    size = 300_000
    for number in range(32):
        (tmp_path / str(number)).write_bytes(bytes(size))
    plan = {"MATEX_PLAN": f"4:10:0:1:{tmp_path}"}
    ended = launch.run_alone(CASE, kind, tmp_path, env=plan, module=True).check()
    notes, _, _ = phantoms.read_copy(tmp_path, 0, ended.returncode, 4)
    found = phantoms.read_input([notes])
    assert found.seconds > 0 and found.bytes == pytest.approx(16 * size * share, rel=0.2)


def test_the_table_shows_megabytes_without_exponents():
    for size, shown in ((1e-3, "<0.01"), (0.4e6 / 64, "0.40"), (12345e6 / 64, "12345")):
        plan = plan_with(lambda _, rows, size=size: Input(0.1, size * 64))
        predictor = Predictor(plan)
        output = io.StringIO()
        table = report.format_table(plan, [predictor.predict_step(ranks) for ranks in RANKS])
        Console(file=output, width=300).print(table)
        assert "MB read" in output.getvalue() and shown in output.getvalue()
        assert not re.search(r"\de[+-]\d", output.getvalue())
