"""The report: one page that asks nothing of a network, small, with every quantity, rank, restart and epoch in it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import simulated_run as simulated
from html_page import CHROMIUM, Page, assert_asks_for_nothing, charts_of, click_on, curves_of, shown_in
from planner_plans import a_plan

import launch
from matex_tf.monitor import progress, recording
from matex_tf.monitor.report import charts, page
from matex_tf.planner import plan_file
from matex_tf.planner.predict import Predictor
from matex_tf.tune import setup


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
    lines = [curve["name"] for chart in charts_of(text)["charts"] for curve in chart["curves"]]
    # Compute, waiting for the input and for ranks, sums, CPU, memory, read, GPU and its memory
    assert [lines.count(f"rank {rank}") for rank in range(4)] == [9] * 4
    assert lines.count("loss") == lines.count("val_loss") == lines.count("accuracy") == 1
    shown = [one["aria-label"].split(",")[0] for one in read.of("div") if one.get("role") == "img"]
    assert shown == [one["title"] for one in charts_of(text)["charts"]] and len(shown) == len(read.of("figure")) == 17
    assert "the others wait for rank 2 (n000): 10.0 ms in each step" in text and "profile of &lt;4&gt; ranks" in text


def test_the_page_is_self_contained_and_small(tmp_path):
    where = simulated.start(tmp_path, 4, 10_000, slow=2, gpu=True)
    simulated.write_events(where, "events-0.jsonl", *epochs(20))
    text, read = report(tmp_path)
    assert len(text) <= 250_000
    assert_asks_for_nothing(text, read)


def test_of_a_thousand_ranks_the_slow_one_stands_out(tmp_path):
    simulated.start(tmp_path, 1024, 40, slow=517)
    text, read = report(tmp_path)
    assert len(text) <= 400_000
    assert "the others wait for rank 517 (n064)" in text
    names = set(curves_of(text, "Waiting for other ranks"))
    assert names == {"rank 517", "median", "most of all ranks", "least of all ranks"}
    assert len(read.of("tr")) >= 1024


def test_starts_lie_one_after_another_and_what_happened_is_marked(tmp_path):
    first = simulated.start(tmp_path, 4, 20, end="")
    simulated.write_events(first, "events-0.jsonl", *epochs(9), {"t": simulated.BEGAN + 18, "event": "a rank was lost"})
    again = simulated.start(tmp_path, 2, 20, number=2, began=simulated.BEGAN + 40)
    simulated.write_events(again, "events-0.jsonl", *epochs(9, simulated.BEGAN + 40, 10))
    told = {"t": simulated.BEGAN + 22, "event": "a rank was killed by SIGKILL; restart 1 of 3"}
    simulated.write_events(tmp_path, "events.jsonl", told)
    text, _ = report(tmp_path)
    assert "restart 1 of 3" in text and "start 2, on 2 ranks on 1 host" in text and "a rank was lost" in text
    (run,) = charts_of(text)["runs"]
    assert [t for t, _ in run["marks"]] == [18, 22, 40]
    compute = curves_of(text, "Compute")
    assert [len(compute[f"rank {rank}"]["t"]) for rank in (0, 3)] == [2, 1], "a gap between the starts"
    _, steps = run["clocks"]["step"]
    assert steps[0] == 0 and steps[-1] == 2 * 19 * 20 and steps == sorted(steps)


def test_charts_of_metrics_count_in_epochs(tmp_path):
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
    text, _ = report(tmp_path)
    loss = curves_of(text, "loss")["loss"]
    assert loss["values"][0][:5] == [1, 0.5, 0.333333, 0.25, 1] and len(loss["t"][0]) == 4 + 6 + 2
    (run,) = charts_of(text)["runs"]
    times, counts = run["clocks"]["epoch"]
    assert times == [0, *loss["t"][0]] and counts == list(range(13))
    assert [one["axis"] for one in charts_of(text)["charts"]][:3] == ["epoch", "epoch", "time"]
    assert [text for _, text in run["marks"]][0] == "restart 1 of 3, and more of it"


def test_epochs_are_counted_over_all_calls_of_fit():
    done = [progress.Epoch(0, number, None, {}) for number in (3, 4, 1, 2, 1)]
    assert progress.count_epochs(done) == [3, 4, 5, 6, 7] and progress.count_epochs([]) == []


def test_names_of_people_are_text_and_not_markup(tmp_path):
    where = simulated.start(tmp_path, 2, 10)
    event = {"t": simulated.BEGAN + 5, "epoch": 1, "of": 2, "logs": {"<script>alert(1)</script>": 1.0}}
    simulated.write_events(where, "events-0.jsonl", event, {"t": simulated.BEGAN + 6, "event": "<img src=x>"})
    text, read = report(tmp_path)
    assert len(read.of("script")) == 3 and not read.of("img")
    assert "&lt;script&gt;" in text and "<script>alert" not in text and "<img" not in text


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


def two_runs(tmp_path):
    for name, ranks, first in (("a", 4, 1.0), ("b", 2, 1.5)):
        where = simulated.start(tmp_path / name, ranks, 60)
        told = [{**one, "logs": {"loss": first * one["logs"]["loss"]}} for one in epochs(20)]
        simulated.write_events(where, "events-0.jsonl", *told)
    return page.format_page(*(recording.open_run(tmp_path / name) for name in ("a", "b")))


def test_runs_lie_beside_each_other(tmp_path):
    text = two_runs(tmp_path)
    assert_asks_for_nothing(text, Page(text))
    loss = curves_of(text, "loss")
    assert {name: (curve["run"], curve["values"][0][0]) for name, curve in loss.items()} == {
        "a, loss": (0, 1.0), "b, loss": (1, 1.5)
    }  # fmt: skip
    assert list(curves_of(text, "CPU")) == [*(f"a, rank {rank}" for rank in range(4)), "b, rank 0", "b, rank 1"]
    assert "<td>4 ranks on 1 host<td>2 ranks on 1 host" in text and text.count("<section>") == 4


def test_the_command_takes_several_runs_and_no_search_among_them(tmp_path):
    two_runs(tmp_path)
    words = [sys.executable, "-m", "matex_tf.launch.cli", "report", str(tmp_path / "a"), str(tmp_path / "b")]
    found = launch.execute(words, launch.environment(), 60).check()
    assert found.stdout == f"{tmp_path / 'a' / 'runs.html'}\n"
    assert "b, loss" in curves_of((tmp_path / "a" / "runs.html").read_text(), "loss")
    (tmp_path / "b" / setup.NOTE).write_text("{}")
    found = launch.execute(words, launch.environment(), 60)
    assert found.returncode == 2 and "is a search" in found.stderr


LOOK = """
const look = title => {
  const figure = [...document.querySelectorAll("figure")].find(one => one.innerText.startsWith(title))
  return [...figure.querySelectorAll(".u-series")].map(one => [...one.children].map(cell => cell.innerText).join(" "))
}
const point = (title, share) => {
  const figure = [...document.querySelectorAll("figure")].find(one => one.innerText.startsWith(title))
  const over = figure.querySelector(".u-over"), box = over.getBoundingClientRect()
  const where = {clientX: box.left + box.width * share, clientY: box.top + 9, bubbles: true}
  over.dispatchEvent(new MouseEvent("mouseenter", where))
  over.dispatchEvent(new MouseEvent("mousemove", where))
  return look(title)
}
const choose = axis => document.querySelector(`button[data-axis="${axis}"]`).click()
const tell = told => document.body.dataset.told = JSON.stringify(told)
"""


def told_by(text, folder, script):
    return json.loads(shown_in(CHROMIUM, text, folder, LOOK + script).of("body")[0]["data-told"])


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
def test_a_browser_shows_the_charts_and_a_click_brings_out_a_rank(tmp_path):
    simulated.start(tmp_path, 4, 30, slow=2)
    script = """;tell(plots.map(one => one.series.slice(1).map(line => [line.label, line.alpha])))"""
    for lines in told_by(report(tmp_path)[0], tmp_path, click_on("rank 2") + script):
        assert lines and all((alpha < 1) == (name in ("rank 0", "rank 1", "rank 3")) for name, alpha in lines), lines


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
def test_who_points_at_a_chart_is_told_the_values_there_by_epoch_step_or_time(tmp_path):
    where = simulated.start(tmp_path, 4, 60)
    simulated.write_events(where, "events-0.jsonl", *epochs(20), {"t": simulated.BEGAN + 19, "event": "it happened"})
    script = """
    const told = [point("loss", 1), point("loss", 0), look("accuracy"), point("CPU", 0.6)]
    const all = async () => {
      for (const axis of ["step", "time", "epoch"]) {
        choose(axis)
        await null // a chart is drawn once the script has ended
        told.push(point("loss", 1), point("CPU", 1))
      }
      tell([...told, [...document.querySelectorAll(".mark")].map(one => one.innerText)])
    }
    all()
    """
    text = report(tmp_path)[0]
    last, first, beside, cpu, *others, marks = told_by(text, tmp_path, script)
    assert last == ["epoch 20 epochs", "loss 0.05", "val_loss 0.1"]
    assert first == ["epoch 1 epochs", "loss 1", "val_loss 2"] and beside == ["epoch 1 epochs", "accuracy 0"]
    names, values = zip(*(one.rsplit(" ", 1) for one in cpu[1:]))
    assert names == tuple(f"rank {rank}" for rank in range(4)) and list(map(float, values)) == pytest.approx(
        [1.0, 1.1, 1.2, 1.3], abs=0.005
    )
    # The last epoch ended at 38 s, after 760 steps; the last sample is of 59 s.
    assert [one[0] for one in others] == [
        "step 760 steps", "step 1,180 steps", "time 38 s", "time 59 s", "epoch 20 epochs", "epoch 20 epochs"
    ]  # fmt: skip
    assert len(marks) == len(charts_of(text)["charts"]) and set(marks) == {"it happened"}


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
def test_values_of_two_runs_stand_beside_each_other(tmp_path):
    assert told_by(two_runs(tmp_path), tmp_path, """tell(point("loss", 1))""") == [
        "epoch 20 epochs", "a, loss 0.05", "b, loss 0.075"
    ]  # fmt: skip
