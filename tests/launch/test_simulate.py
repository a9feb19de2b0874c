"""The words of `matex simulate`, in this process: it starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matex_tf.launch import cli
from matex_tf.planner import plan_file
from matex_tf.planner.papers import htc, htc_minibatch


@pytest.fixture
def plan(tmp_path):
    def size(ranks, rows):
        return plan_file.Size(
            ranks, 1, rows, (0.01 * rows,) * 3, (0.005 * rows, 0.01 * rows), (0.001,), 1 << 28, 1 << 29
        )

    gradients = plan_file.Gradient("dense/kernel", 4 << 20), plan_file.Gradient("dense/bias", 4 << 10)
    collectives = (plan_file.Collective("collective", "bn/mean", 256),)
    sizes = size(1, 64), size(4, 16)
    path = tmp_path / "plan.json"
    plan_file.save_plan(
        plan_file.Plan(
            ("train.py",), "here", 4, 2, "strong", True, 64, 100, gradients, collectives, sizes, network="ethernet25"
        ),
        path,
    )
    return str(path)


def said(capsys, *words):
    code = cli.main(["simulate", *words])
    told = capsys.readouterr()
    return code, " ".join(told.out.split()), told.err


def test_a_plan_is_simulated_with_each_what_if_and_with_all(plan, capsys, tmp_path):
    path = tmp_path / "sim.json"
    code, table, _ = said(
        capsys, plan, "--ranks", "1,8", "--what", "overlap=off", "--what", "link=2us,25GB/s", "--timeline", str(path)
    )
    assert code == 0
    for words in ("as planned", "overlap=off", "link=2us,25GB/s", "all of these", "ethernet25 between hosts"):
        assert words in table, table
    assert table.count("as planned") == 2
    code, table, _ = said(capsys, plan, "--ranks", "8", "--what", "link=ethernet1", "--what", "link=ethernet10")
    assert code == 0 and "link=ethernet10" in table and "all of these" not in table, "they exclude each other"
    words = ("--what", "servers=4", "--what", "pull=ibatch", "--what", "servers=8")
    code, table, _ = said(capsys, plan, "--ranks", "8", *words)
    assert code == 0 and "pull=ibatch servers=4" in table and "pull=ibatch servers=8" in table
    assert any(row["name"] == "compute" for row in json.loads(path.read_text())["traceEvents"])


def test_servers_by_three_models_side_by_side(plan, capsys):
    code, table, _ = said(capsys, "--servers", "--ranks", "4,8", "--compute", "80ms", "--transfer", "20ms")
    assert code == 0 and all(words in table for words in ("lemma 3.2", "eq. 6", "exact, for 95%", "below 1/7")), table
    four, eight = (next(line for line in table.split("│ │") if f" {n} │ 0.200" in f" {line}") for n in (4, 8))
    assert "outside its domain" not in four and "2 (99%)" in four and "3 (99%)" in eight
    code, table, _ = said(capsys, "--servers", "--ranks", "512,4096", "--compute", "10ms", "--transfer", "100ms")
    assert code == 0 and "1.5e+146 (100%)" in table and "inf (100%)" in table
    code, table, _ = said(capsys, "--servers", "--ranks", "4", plan)
    assert code == 0 and "eq. 6" in table
    code, table, _ = said(capsys, "--servers", "--ranks", "64,5000", "--compute", "80ms", "--transfer", "20ms")
    assert code == 0 and "inf (100%)" in table, "outside its domain equation 6 exceeds the range of floats"


def test_a_timeline_is_played_again(plan, capsys, tmp_path):
    path = str(tmp_path / "sim.json")
    said(capsys, plan, "--ranks", "8", "--what", "overlap=on", "--timeline", path)
    code, table, _ = said(capsys, path, "--what", "slow=1:1.5")
    assert code == 0 and all(words in table for words in ("measured", "replayed", "slow=1:1.5", "16 steps")), table
    code, _, error = said(capsys, path, "--what", "link=2us,25GB/s")
    assert code == 2 and "link=2us,25GB/s needs a plan" in error
    code, _, error = said(capsys, path, "--servers")
    assert code == 2 and "--servers needs a plan" in error


@pytest.mark.parametrize(
    "words, answer",
    [
        (["PLAN", "--what", "overlp=off"], "did you mean overlap?"),
        (["PLAN", "--ranks", "none"], "1,2,4,...,1024"),
        (["PLAN", "--what", "slow=9:2", "--ranks", "4"], "ranks 0 to 3"),
        (["PLAN", "--whta", "x"], "--what"),
        (["no-such.json"], "no-such.json: No such file"),
        ([], "name the file of a plan"),
        (["--servers"], "--ranks 4,8,16"),
        (["--servers", "--ranks", "4"], "--compute TIME"),
        (["--servers", "--ranks", "4", "--compute", "80", "--transfer", "1ms"], "as 80ms"),
        (["--servers", "--ranks", "4", "--compute=1s", "--transfer=1s", "--bandwidth-ratio=1e-30"], "a share above"),
    ],
)
def test_what_is_wrong_is_said(plan, capsys, words, answer):
    code, _, error = said(capsys, *(plan if word == "PLAN" else word for word in words))
    assert code == 2 and answer in error, error


def test_what_is_no_plan_is_said(capsys, tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[]")
    code, _, error = said(capsys, str(path))
    assert code == 2 and "no plan" in error


def test_ranks_are_told_as_to_plan_and_what_cannot_be_is_said(plan, capsys):
    code, table, _ = said(capsys, plan, "--ranks", "1,2,4,...,16", "--what", "overlap=on")
    assert code == 0 and table.count("as planned") == 5
    assert "overlap=on: nothing changes on 2 ranks of one host." in table


def test_the_minibatch_of_htc_is_that_of_its_program(capsys):
    code, table, _ = said(capsys, "--minibatch", "--memory", "2GiB", "--rows", "32,64,96,...,512")
    batches = htc_minibatch.list_batches(htc.ALEXNET, range(32, 513, 32), 2 << 30)
    best = max(batches, key=lambda one: one.rows_per_second)
    assert code == 0 and f"suggested: {best.rows} rows. {16 - len(batches)} larger batches do not fit." in table
    for one in batches:
        letters = "".join("GF"[algorithm] for algorithm in one.choice.algorithms)
        assert f"{one.rows} │ {letters} │ {one.rows_per_second / best.rows_per_second:.3f}" in table
    assert said(capsys, "--minibatch", "--memory", "2GiB", "--layers", htc.ALEXNET_LAYERS)[1] == table
    small = "32x32x3 conv:3+1:64 pool:2/2 conv:3:128 dense:10"
    code, table, _ = said(capsys, "--minibatch", "--memory", "1GiB", "--rows", "8", "--layers", small)
    assert code == 0 and small in table and "name larger --rows" in table
    assert htc.parse_architecture(small).dense == (14 * 14 * 128, 10)


def test_the_example_of_the_docs_suggests_a_batch(capsys):
    command = "matex simulate --minibatch --memory 2GiB"
    assert f"    {command}\n" in (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
    assert cli.main(command.split()[1:]) == 0 and "suggested: 128 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--minibatch"], "--memory 12GiB"),
        (["--minibatch", "--memory", "here"], "--memory 12GiB"),
        (["--minibatch", "--memory", "12"], "a size with its unit"),
        (["--minibatch", "--memory", "1MiB"], "name fewer --rows or more --memory"),
        (["--minibatch", "--memory", "1GiB", "--what", "overlap=off"], "goes without --what"),
        (["--minibatch", "--memory", "1GiB", "--servers"], "goes without --servers"),
        (["--minibatch", "--memory", "1GiB", "plan.json"], "goes without plan.json"),
        (["--memory", "1GiB", "plan.json"], "--memory goes with --minibatch"),
        (
            ["--timeline", "nowhere/sim.json", "plan.json"],
            "--timeline cannot write nowhere/sim.json: there is no folder",
        ),
        (["--rows", "4", "plan.json"], "--rows goes with --minibatch"),
        (["--minibatch", "--memory", "1GiB", "--layers", "alexnet"], "expected WIDTHxHEIGHTxDEPTH"),
        (["--minibatch", "--memory", "1GiB", "--layers", "8x8x3 dense:10"], "one convolution or more"),
        (["--minibatch", "--memory", "1GiB", "--layers", "8x8x3 conv:3 dense:10"], "given 'conv:3'"),
        (["--minibatch", "--memory", "1GiB", "--layers", "8x8x3 pool:2/0 conv:3:4 dense:10"], "given 'pool:2/0'"),
        (["--minibatch", "--memory", "1GiB", "--layers", "8x8x3 conv:11:4 dense:10"], "a window of 11"),
        (["--minibatch", "--memory", "1GiB", "--layers", "8x9x3 conv:3:4 dense:10"], "square"),
    ],
)
def test_a_minibatch_that_cannot_be_chosen(words, message, capsys):
    code, table, complaint = said(capsys, *words)
    assert code == 2 and message in complaint and not table
