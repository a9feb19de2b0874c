"""The report: one page that asks nothing of a network, small, with every quantity, rank, restart and epoch in it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import simulated_run as simulated
from html_page import CHROMIUM, Page, assert_asks_for_nothing, click_on, shown_in
from planner_plans import a_plan

import launch
from matex_tf.monitor import progress, recording
from matex_tf.monitor.report import charts, page
from matex_tf.planner import plan_file
from matex_tf.planner.predict import Predictor


def report(folder):
    text = page.format_page(recording.open_run(folder))
    return text, Page(text)


def epochs(count, began=simulated.BEGAN, first=1):
    return [
        {
            "t": began + 2 * number, "up": 40 * number, "epoch": first + number, "of": 20, "steps": 40,
            "logs": {"loss": 1 / (number + 1), "val_loss": 2 / (number + 1), "accuracy": number / 20},
        }
        for number in range(count)
    ]  # fmt: skip


def test_the_page_has_every_quantity_with_a_line_for_each_rank(tmp_path):
    where = simulated.start(tmp_path, 4, 60, slow=2, gpu=True)
    simulated.write_events(where, "events-0.jsonl", *epochs(20))
    (where / "profile.txt").write_text("profile of <4> ranks")
    text, read = report(tmp_path)
    for title in ("loss", "accuracy", "Rows a second", "Compute", "Waiting for the input",
                  "Waiting for other ranks", "CPU", "Memory", "Read", "GPU",
                  "GPU memory", "Received", "Sent", "Busy cores"):  # fmt: skip
        assert f"<b>{title}</b>" in text, title
    lines = [one["data-of"] for one in read.of("path") if "data-of" in one]
    # Compute, waiting for the input and for ranks, sums, CPU, memory, read, GPU and its memory
    assert [lines.count(f"rank {rank}") for rank in range(4)] == [9] * 4
    assert lines.count("loss") == lines.count("val_loss") == lines.count("accuracy") == 1
    assert len(read.of("svg")) == len(read.of("figure")) == 17 and all(one["aria-label"] for one in read.of("svg"))
    assert "the others wait for rank 2 (n000): 10.0 ms in each step" in text and "profile of &lt;4&gt; ranks" in text


def test_the_page_is_self_contained_and_small(tmp_path):
    where = simulated.start(tmp_path, 4, 10_000, slow=2, gpu=True)
    simulated.write_events(where, "events-0.jsonl", *epochs(20))
    text, read = report(tmp_path)
    assert len(text) <= 200_000
    assert_asks_for_nothing(text, read)


def test_of_a_thousand_ranks_the_slow_one_stands_out(tmp_path):
    simulated.start(tmp_path, 1024, 40, slow=517)
    text, read = report(tmp_path)
    assert len(text) <= 400_000
    assert "the others wait for rank 517 (n064)" in text
    names = {one.get("data-of", "") for one in read.of("path")}
    assert names == {
        "",
        "rank 517",
        "median of all ranks",
        "all ranks",
        *(name for name in names if name.startswith("n")),
    }
    assert len(read.of("polygon")) >= 4 and len(read.of("tr")) >= 1024


def test_starts_lie_one_after_another_and_what_happened_is_marked(tmp_path):
    first = simulated.start(tmp_path, 4, 20, end="")
    simulated.write_events(first, "events-0.jsonl", *epochs(9), {"t": simulated.BEGAN + 18, "event": "a rank was lost"})
    again = simulated.start(tmp_path, 2, 20, number=2, began=simulated.BEGAN + 40)
    simulated.write_events(again, "events-0.jsonl", *epochs(9, simulated.BEGAN + 40, 10))
    told = {"t": simulated.BEGAN + 22, "event": "a rank was killed by SIGKILL; restart 1 of 3"}
    simulated.write_events(tmp_path, "events.jsonl", told)
    text, read = report(tmp_path)
    assert "restart 1 of 3" in text and "start 2, on 2 ranks on 1 host" in text and "a rank was lost" in text
    marks = [one for one in read.of("path") if one.get("class") == "mark"]
    assert len(marks) == 3 * len(read.of("svg"))
    compute = [one["d"] for one in read.of("path") if one.get("data-of") == "rank 0"][0]
    assert compute.count("M") == 2, "a gap between the starts"
    rank_3 = [one["d"] for one in read.of("path") if one.get("data-of") == "rank 3"][0]
    assert rank_3.count("M") == 1


def test_charts_of_metrics_count_in_epochs_and_those_over_time_name_some(tmp_path):
    """An epoch that is trained again after a restart is there once; a second `fit` goes on from the first."""
    first = simulated.start(tmp_path, 2, 40, end="")
    told = epochs(6, first=1)
    simulated.write_events(first, "events-0.jsonl", *({**one, "call": 0} for one in told))
    again = simulated.start(tmp_path, 2, 40, number=2, began=simulated.BEGAN + 50)
    more = [*({**one, "call": 0} for one in epochs(6, simulated.BEGAN + 50, 5)),
            *({**one, "call": 1} for one in epochs(2, simulated.BEGAN + 70, 1))]  # fmt: skip
    simulated.write_events(again, "events-0.jsonl", *more)
    simulated.write_events(
        tmp_path, "events.jsonl", {"t": simulated.BEGAN + 45, "event": "restart 1 of 3, and more of it"}
    )
    text, read = report(tmp_path)
    loss = next(one for one in read.of("path") if one.get("data-of") == "loss")
    assert loss["d"].count("M") + loss["d"].count("L") == len(loss["data-values"].split()) == 4 + 6 + 2
    assert loss["data-values"].split()[:5] == ["1", "0.5", "0.333333", "0.25", "1"]
    units = [one["data-unit"] for one in read.of("svg")]
    assert units[:2] == ["epochs"] * 2 and set(units[2:]) == {"s"}
    assert ">2 epochs<" in text and ">epoch 3<" in text and "0.5 epochs" not in text
    assert text.count('class="label"') == 2 * len(units) and ">restart 1 of 3, and more of it<" in text


def test_epochs_are_counted_over_all_calls_of_fit():
    done = [progress.Epoch(0, number, None, {}) for number in (3, 4, 1, 2, 1)]
    assert progress.count_epochs(done) == [3, 4, 5, 6, 7] and progress.count_epochs([]) == []


def test_names_of_people_are_text_and_not_markup(tmp_path):
    where = simulated.start(tmp_path, 2, 10)
    event = {"t": simulated.BEGAN + 5, "epoch": 1, "of": 2, "logs": {"<script>alert(1)</script>": 1.0}}
    simulated.write_events(where, "events-0.jsonl", event, {"t": simulated.BEGAN + 6, "event": "<img src=x>"})
    text, read = report(tmp_path)
    assert len(read.of("script")) == 1 and not read.of("img")
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_said(tmp_path, loss):
    where = simulated.start(tmp_path, 2, 10)
    simulated.write_events(
        where, "events-0.jsonl", {"t": simulated.BEGAN + 5, "epoch": 1, "of": 2, "logs": {"loss": loss}}
    )
    assert "loss was never a finite number" in report(tmp_path)[0]


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    simulated.start(tmp_path, 2, 1, end="")
    assert "2 ranks on 1 host" in report(tmp_path)[0]


def test_the_least_and_the_most_of_each_stretch_are_kept():
    t = np.arange(10_000.0)
    values = np.sin(t)
    values[[1234, 7777]] = 9, -9
    kept_t, kept = charts.decimate_series(t, values, 100, 10_000)
    assert len(kept) <= 202 and list(kept_t) == sorted(kept_t)
    assert kept[list(kept_t).index(1234)] == 9 and kept[list(kept_t).index(7777)] == -9
    assert kept_t[0] == 0 and kept_t[-1] == 9999
    values[5000:] = np.nan
    assert np.isfinite(charts.decimate_series(t, values, 100, 10_000)[1]).all()


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 0.07, [0, 0.02, 0.04, 0.06]),
        (2.31, 2.36, [2.31, 2.32, 2.33, 2.34, 2.35, 2.36]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert charts.choose_ticks(low, high) == pytest.approx(expected)


def test_of_long_files_lines_are_read_here_and_there_and_their_means_are_exact(tmp_path):
    where = simulated.start(tmp_path, 1, 30_000)
    found = recording.Series(recording.read_samples(where / "rank-0.jsonl", 100))
    assert 40 <= len(found) <= 60
    assert found["t"][0] == simulated.BEGAN and found["t"][-1] == simulated.BEGAN + 29_999
    assert found.compute_rates("rows") == pytest.approx(np.full(len(found) - 1, 1280.0))
    assert list(found["t"]) == sorted(set(found["t"]))


def test_the_command_writes_the_page_and_says_where(tmp_path):
    simulated.start(tmp_path / "my run", 2, 10)
    words = [sys.executable, "-m", "matex_tf.launch.cli", "report", str(tmp_path / "my run")]
    found = launch.execute(words, launch.environment(), 60).check()
    assert found.stdout == f"{tmp_path / 'my run' / 'report.html'}\n"
    Page((tmp_path / "my run" / "report.html").read_text())
    words += ["--output", str(tmp_path / "nowhere" / "a.html")]
    found = launch.execute(words, launch.environment(), 60)
    assert found.returncode == 1 and "nowhere" in found.stderr and found.stderr.count("\n") == 1


def test_what_was_predicted_stands_beside_what_was_measured(tmp_path):
    simulated.start(tmp_path / "run", 2, 30)
    plan_file.save_plan(a_plan(), tmp_path / "plan.json")
    words = [sys.executable, "-m", "matex_tf.launch.cli", "report", str(tmp_path / "run"), "--plan"]
    launch.execute([*words, str(tmp_path / "plan.json")], launch.environment(), 60).check()
    text = (tmp_path / "run" / "report.html").read_text()
    predicted = Predictor(a_plan()).predict_step(2).step
    assert f"a step of 2 ranks, predicted: {predicted * 1e3:.1f} ms" in text
    assert f"measured on rank 0: 40.0 ms, {0.04 / predicted:.2f} of it" in text
    (tmp_path / "no.json").write_text("{}")
    found = launch.execute([*words, str(tmp_path / "no.json")], launch.environment(), 60)
    assert found.returncode == 1 and "no plan" in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
def test_a_browser_shows_the_page_and_a_click_brings_out_a_rank(tmp_path):
    simulated.start(tmp_path, 4, 30, slow=2)
    text, _ = report(tmp_path)
    shown = shown_in(CHROMIUM, text, tmp_path, click_on("rank 2"))
    lines = [one for one in shown.of("path") if one.get("data-of", "").startswith("rank ")]
    dim = {one["data-of"]: "dim" in one["class"].split() for one in lines}
    assert dim == {"rank 0": True, "rank 1": True, "rank 2": False, "rank 3": True}


POINT = """
const point = (chart, share) => {
  const box = chart.getBoundingClientRect(), x = box.left + box.width * share
  chart.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: box.top + 9, bubbles: true}))
  return document.querySelector("#tip").textContent
}
const charts = [...document.querySelectorAll("svg")]
const cpu = charts.find(one => one.ariaLabel.startsWith("CPU"))
const told = [point(charts[0], 0.99), point(charts[0], 0.101), point(cpu, 0.6)]
document.body.dataset.told = JSON.stringify(told)
charts[0].dispatchEvent(new PointerEvent("pointerleave"))
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
def test_who_points_at_a_chart_is_told_the_values_there(tmp_path):
    where = simulated.start(tmp_path, 4, 60)
    simulated.write_events(where, "events-0.jsonl", *epochs(20))
    shown = shown_in(CHROMIUM, report(tmp_path)[0], tmp_path, POINT)
    last, first, cpu = json.loads(shown.of("body")[0]["data-told"])
    assert last == "20 epochs\nloss  0.05\nval_loss  0.1" and first == "1 epochs\nloss  1\nval_loss  2"
    at, *ranks = cpu.split("\n")
    assert at.endswith(" s") and [line.split("  ")[0] for line in ranks] == [f"rank {rank}" for rank in range(4)]
    assert [float(line.split("  ")[1]) for line in ranks] == pytest.approx([1.0, 1.1, 1.2, 1.3], abs=0.005)
    assert "display: none" in next(one for one in shown.of("div") if one.get("id") == "tip")["style"]
