"""A function that trains gets slices of its arguments: what it computes, and what is asked around it, is as alone."""

from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("border_cases.py")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_step_is_under_ranks_what_it_is_alone(alone, which, ranks, tmp_path):
    environment = {**launch.ALL_FILES, "MATEX_EXPLAIN": "1"}
    result = launch.run(ranks, CASES, tmp_path, which, env=environment, timeout=300).check()
    found = stored(tmp_path, ranks)
    wrong = differences({name: alone[name] for name in alone.keys() - {"names", "shared"}}, found, 1e-9)
    assert not wrong, "\n".join(wrong)
    for left in found:
        shared = dict(zip(left["names"].tolist(), left["shared"].tolist()))
        assert [name for name, is_shared in shared.items() if not is_shared] == []
    # The line of the script is named where rows meet.
    assert f"(border_cases.py line {_line('mixed = ')})" in result.output


def _line(beginning):
    lines = CASES.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(beginning))
