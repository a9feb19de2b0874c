"""README, quickstart and guide to the letter: their commands run in a fresh clone and show what is promised."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import (
    COMMAND,
    ELSEWHERE,
    PAGES,
    SETTING,
    SHORT,
    change_command,
    find_environment,
    is_python,
    list_blocks,
    list_commands,
    make_clone,
    run_commands,
)  # fmt: skip

from matex_tf.launch import cli


@dataclass(frozen=True)
class Shown:
    """An output that a page shows: by the command before it, and what of it is the same everywhere."""

    command: str
    kept: str
    tolerance: float


OUTPUTS = {
    "epoch   loss": Shown("scripts/demo", r"^ +\d+ +[01]\.\d+ +[01]\.\d+", 1e-5),
    "alone    ": Shown(
        "matex run --check --steps 4 -n 2 examples/mnist_keras.py", r"^[a-z]+ .*(?:equal|close)|^check: ok", 1e-3
    ),
}


def find_shown(block: str) -> Shown | None:
    return next((shown for begins, shown in OUTPUTS.items() if block.lstrip().startswith(begins)), None)


def read_lines(text: str, shown: Shown) -> list[list[str | float]]:
    """The words and numbers of what is the same everywhere."""
    found = [re.findall(r"[\w.+-]+", match.group()) for match in re.finditer(shown.kept, text, re.MULTILINE)]
    return [[float(word) if re.fullmatch(r"[\d.]+", word) else word for word in line] for line in found]


def is_alike(line: list[str | float], other: list[str | float], tolerance: float) -> bool:
    pairs = [(a, pytest.approx(b, rel=tolerance) if isinstance(b, float) else b) for a, b in zip(line, other)]
    return len(line) == len(other) and all(a == b for a, b in pairs)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_python_or_commands_or_an_output_that_is_compared(page):
    blocks = list_blocks(page)
    assert blocks
    for before, block in zip(["", *blocks], blocks):
        if not any(COMMAND.match(line) for line in block.splitlines()) and not is_python(block):
            shown = find_shown(block)
            assert shown is not None and read_lines(block, shown), f"nobody compares this output:\n{block}"
            assert shown.command in before, before
        elif not is_python(block) or COMMAND.match(block):
            assert all(COMMAND.match(line) for line in block.splitlines()), block


@pytest.mark.parametrize("page", PAGES)
def test_each_matex_run_is_one_that_matex_takes(page):
    for command in list_commands(page):
        words = SETTING.sub("", command).split()
        if words[:2] == ["matex", "run"]:
            assert cli.parse_run(words[2:]).target
        elif words[0] == "matex":
            cli.matex.get_command(None, words[1]).make_context(words[1], words[2:], resilient_parsing=False)


def test_what_runs_elsewhere_is_still_on_a_page():
    assert set(ELSEWHERE) <= {command for page in PAGES for command in list_commands(page)}
    assert set(SHORT) <= {command for page in PAGES for command in list_commands(page)}


def check_outputs(page: str, said: dict[str, str]) -> None:
    """What the page shows is what was said."""
    for block in list_blocks(page):
        shown = find_shown(block)
        if shown is not None and shown.command in said:
            expected, found = read_lines(block, shown), read_lines(said[shown.command], shown)
            for line in expected:
                assert any(is_alike(one, line, shown.tolerance) for one in found), f"{line} is not among {found}"


@pytest.mark.more
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("page", PAGES)
def test_a_newcomer_follows_a_page_from_the_first_line_to_the_last(page, tmp_path):
    """With what pip brings, and ops that are compiled there."""
    clone = make_clone(tmp_path / "clone")
    commands = [command for command in list_commands(page) if command not in ELSEWHERE]
    if not any(command.startswith("pip install") for command in commands):
        commands = [*list_commands("docs/quickstart.md")[:2], *commands]
    environment = find_environment(tmp_path / "home", PATH=f"{Path(sys.base_prefix, 'bin')}:{os.defpath}")
    if page == "README.md":  # which begins with the clone, and does not say where to install
        commands = ["python3 -m venv env && source env/bin/activate", *commands]
    said = run_commands([change_command(command, tmp_path) for command in commands], clone, environment, 5000)
    check_outputs(page, dict(zip(commands, said.values())))
