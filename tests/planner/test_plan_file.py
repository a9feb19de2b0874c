"""plan.json: what is saved is what is loaded, and what is no plan is refused with the reason."""

import dataclasses
import json

import pytest

from matex_tf.planner import plan_file
from matex_tf.planner.plan_file import Collective, Gradient, LinkMeasurement, Plan, PlanFileError, Size


def a_plan(**changed) -> Plan:
    """Two gradients, one collective; 1 ms and 0.1 ms a row, of 64 rows."""
    sizes = [
        Size(n, 2, 64 // n, (1e-3 + 6.4e-3 / n,) * 5, (5e-4 + 3.2e-3 / n, 1e-3 + 6.4e-3 / n), (1e-4,), 10**8, 2 * 10**8)
        for n in (1, 4, 16)
    ]
    link = LinkMeasurement(plan_file.ONE_HOST, 2, 1, plan_file.LINK_BYTES, *[(1e-5, 2e-5, 5e-5, 3e-4, 6e-3)] * 2, 1e-10)
    given = {
        "script": ("train.py",), "host": "here", "cores": 2, "ranks_per_host": 2, "scaling": "strong",
        "overlaps": True, "rows": 64, "epoch_steps": 10, "network": "ethernet25",
        "gradients": (Gradient("b", 40_000), Gradient("a", 4_000_000)),
        "collectives": (Collective("collective", "moments", 256),), "sizes": tuple(sizes), "links": (link,),
    }  # fmt: skip
    return Plan(**{**given, **changed})


def test_what_is_saved_is_loaded(tmp_path):
    plan_file.save(a_plan(), tmp_path / "plan.json")
    assert plan_file.load(tmp_path / "plan.json") == a_plan()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda content: content.update(format=99), "format is 99"),
        (lambda content: content.pop("sizes"), "no plan"),
        (lambda content: content["sizes"][0].update(ready=[1.0]), "as many times as gradients"),
        (lambda content: content["sizes"][0].update(rows="many"), "expected int, not 'many'"),
        (lambda content: content.update(wheels=4), "Plan has no wheels"),
        (lambda content: content["links"][0].update(scope="the moon"), "the moon"),
        (lambda content: content["sizes"].reverse(), "rising"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, change, why):
    content = json.loads(json.dumps(dataclasses.asdict(a_plan())))
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanFileError, match=why):
        plan_file.load(tmp_path / "plan.json")


def test_text_that_is_no_json(tmp_path):
    (tmp_path / "plan.json").write_text("step 1")
    with pytest.raises(PlanFileError, match="no plan that can be read"):
        plan_file.load(tmp_path / "plan.json")
