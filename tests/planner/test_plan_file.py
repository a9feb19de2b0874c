"""plan.json: what is saved is what is loaded, and what is no plan is refused with the reason."""

import dataclasses
import json

import pytest
from planner_plans import a_plan

from matex_tf.planner import plan_file
from matex_tf.planner.plan_file import PlanFileError


def test_what_is_saved_is_loaded(tmp_path):
    measured = a_plan(update=plan_file.Update(1, 2, 3, 4, "why", "not"), whole=a_plan().sizes[0])
    for plan in (a_plan(), measured):
        plan_file.save_plan(plan, tmp_path / "plan.json")
        assert plan_file.load_plan(tmp_path / "plan.json") == plan


def test_a_plan_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    def fill_disk(path, text):
        path.write_bytes(text[:100].encode())
        raise OSError("no space left")

    plan_file.save_plan(a_plan(), tmp_path / "plan.json")
    monkeypatch.setattr(plan_file.Path, "write_text", fill_disk)
    with pytest.raises(OSError, match="no space left"):
        plan_file.save_plan(a_plan(rows=32), tmp_path / "plan.json")
    assert plan_file.load_plan(tmp_path / "plan.json") == a_plan()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda content: content.update(format=99), "format is 99"),
        # Format 2 had plans without an update, of which no reason against strategies was true.
        (lambda content: content.pop("update") and content.update(format=2), "plan the script again"),
        (lambda content: content.update(update=None), "expected Update, not None"),
        (lambda content: content.pop("sizes"), "does not contain a plan"),
        (lambda content: content["sizes"][0].update(ready=[1.0]), "numbers of times, gradients"),
        (lambda content: content["sizes"][0].update(rows="many"), "expected int, not 'many'"),
        (lambda content: content.update(wheels=4), "Plan has no wheels"),
        (lambda content: content["links"][0].update(scope="the moon"), "the moon"),
        (lambda content: content["sizes"].reverse(), "sorted"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, change, why):
    content = json.loads(json.dumps(dataclasses.asdict(a_plan())))
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanFileError, match=why):
        plan_file.load_plan(tmp_path / "plan.json")


def test_text_that_is_no_json(tmp_path):
    (tmp_path / "plan.json").write_text("step 1")
    with pytest.raises(PlanFileError, match="no plan can be read"):
        plan_file.load_plan(tmp_path / "plan.json")
