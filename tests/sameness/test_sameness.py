"""Equal to the sequential run: losses, figures and weights of every style of script under 1 to 4 ranks (rule 15)."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close, differences, stored

import launch
from matex_tf.settings import count_only_serving

CASES = Path(__file__).with_name("cases.py")
OVERLAPPED = {"MATEX_OVERLAP": "on", "MATEX_ALGORITHM": "ring"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "ranks, settings",
    [
        pytest.param(1, {}, id="1", marks=pytest.mark.more),
        pytest.param(2, {}, id="2", marks=pytest.mark.more),
        pytest.param(3, {}, id="3", marks=pytest.mark.more),
        pytest.param(4, {}, id="4", marks=pytest.mark.more),
        pytest.param(3, OVERLAPPED, id="3-overlapped", marks=pytest.mark.more),
        pytest.param(2, {"MATEX_STRATEGY": "servers:1:only"}, id="2-one-serves", marks=pytest.mark.more),
        pytest.param(3, {"MATEX_STRATEGY": "servers:1:only"}, id="3-one-serves", marks=pytest.mark.more),
    ],
)
def test_every_style_gives_the_sequential_result(alone, ranks, settings, tmp_path):
    launch.run(ranks, CASES, tmp_path, env={**launch.ALL_FILES, **settings}, timeout=800).check()
    results = stored(tmp_path, ranks)
    problems = []
    for name, want in alone.items():
        parts = [result[name] for result in results]
        if name.endswith("|rows"):
            servers = count_only_serving(settings.get("MATEX_STRATEGY", ""))
            problems += [f"{name}: {problem}" for problem in wrong_rows(name, want, parts, servers)]
            continue
        if not close(parts[0], want):
            problems.append(f"{name}: off by {np.abs(parts[0] - want).max()} of {np.abs(want).max()}")
        for rank, part in enumerate(parts):
            if "|weight" in name and part.tobytes() != parts[0].tobytes():
                problems.append(f"{name}: rank {rank} and rank 0 differ")
            if "|seen" in name and "eager" not in name and not close(part, parts[0]):
                problems.append(f"{name}: rank {rank} saw other figures than rank 0")
    assert not problems, "\n".join(problems)


def wrong_rows(name, alone, parts, servers=0):
    """What is wrong with the rows that each rank computed in training, step by step; the last `servers` have none.

    Replicas that all compute everything would give the sequential result, too.
    """
    ranks = len(parts)
    if any(len(part) != len(alone) for part in parts):
        yield f"steps {[len(part) for part in parts]} instead of {len(alone)}"
        return
    for step, count in enumerate(alone):
        computed = [int(part[step]) for part in parts]
        train = ranks - servers
        share = [count // train + (rank < count % train) for rank in range(train)] + [0] * servers
        # A rank without rows computes one with weight 0. A model in eager code is called for the first time with so
        # many rows as the script alone calls it.
        sliced = [max(rows, 1) for rows in share]
        is_first = name.startswith("loop eager") and count not in alone[:step]
        if computed != ([count] * ranks if is_first else sliced):
            yield f"step {step} of {count} rows was computed as {computed}"
            return


def test_the_comparison_notices_a_difference():
    want = np.array([1.0, 1e-6])
    assert close(want, want)
    assert not close(want * (1 + 1e-9), want)
    assert close(np.array([1.0, 1e-6 + 1e-12]), want)
    assert not list(wrong_rows("fit", np.array([5] * 5), [np.array([3] * 5), np.array([2] * 5)]))
    assert list(wrong_rows("fit", np.array([5] * 5), [np.array([5] * 5), np.array([5] * 5)]))


@pytest.mark.timeout(600)
def test_losses_and_loops_of_every_kind_are_exact(which, tmp_path):
    script = CASES.with_name("loop_cases.py")
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    launch.run_alone(script, alone, which, timeout=200).check()
    launch.run(3, script, together, which, env={**launch.ALL_FILES, **OVERLAPPED}, timeout=350).check()
    wrong = differences(stored(alone)[0], stored(together, 3))
    assert not wrong, "\n".join(wrong)
