"""The pages: links lead somewhere, pictures are what their script draws, sentences are short, words are the field's."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import launch

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
MADE_OF_TABLES = ("settings.md", "measurements.md", "CHANGELOG.md")

LINK = re.compile(r"\]\(([^)\s]+)\)")
# What engineers stumbled on when they read earlier versions.
ODD = (
    "and said", "shared out", "shares out", "right, but not faster", "weighed", "hangs on", "let go of",
    "how to mend it", "at the mercy of", "reduced where they are born",
)  # fmt: skip
LONGEST = 40  # words; aim at 30 (CONTRIBUTING.md)


def prose(text):
    """The paragraphs and list items of a page, without code, tables, headings and addresses of links."""
    text = re.sub(r"(?m)^(    |\||#|---|!\[).*$", "", text)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    return re.split(r"\n\s*\n|\n\s*(?:- |\d+\. )", text)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target}: there is no such file"
        assert not anchor or anchor in anchors(found), f"{target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_words_are_the_fields_and_sentences_short(page):
    text = page.read_text()
    assert not [words for words in ODD if re.search(rf"\b{words}\b", " ".join(text.split()))]
    if page.name in MADE_OF_TABLES:
        return
    for paragraph in prose(text):
        for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split())):
            assert len(sentence.split()) <= LONGEST, sentence


def test_messages_have_the_fields_words_too():
    for folder in ("matex_tf", "ops", "readers"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                    found = [words for words in ODD if re.search(rf"\b{words}\b", " ".join(node.value.split()))]
                    assert not found, f"{path}, line {node.lineno}: {found}"


def test_pictures_are_what_the_script_draws(tmp_path):
    command = [sys.executable, str(FIGURES / "draw.py"), str(tmp_path)]
    launch.execute(command, launch.environment(), 60).check()
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in FIGURES.glob("*.svg")}, "run: python docs/figures/draw.py"


# Of colours as linear RGB: what eyes without the one or other kind of cone see (Machado, Oliveira, Fernandes 2009).
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
TO_XYZ = [[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]]  # relative to white
TOLD_APART = 20
"""CIELAB; 2.3 is the least difference that a person notices, side by side."""


def seen(colour, vision):
    """A colour "#rrggbb" as eyes of this kind see it, in CIELAB."""
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.array(VISION[vision]) @ linear, 0, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_the_kinds_of_the_timeline_are_told_apart(monkeypatch, vision):
    monkeypatch.syspath_prepend(FIGURES)
    canvas, measured = importlib.import_module("canvas"), importlib.import_module("measured")
    assert len(set(measured.KINDS.values())) == 5
    for page in range(2):
        found = [seen(canvas.COLOURS[name][page], vision) for name in measured.KINDS.values()]
        pairs = itertools.combinations(found, 2)
        assert min(np.linalg.norm(one - other) for one, other in pairs) > TOLD_APART


def test_every_picture_is_shown():
    shown = {Path(target).name for page in PAGES for target in LINK.findall(page.read_text())}
    assert {path.name for path in FIGURES.glob("*.svg")} <= shown


def test_the_worked_example_of_a_patch_is_the_codes_own():
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Adding a patch")[1].split("\n## ")[0]
    shown = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    code = (ROOT / "matex_tf/hooks/functions.py").read_text().splitlines()
    assert shown and {line.strip() for line in shown} <= {line.strip() for line in code}
