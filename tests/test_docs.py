"""The pages: links lead somewhere, pictures are what their script draws, sentences are short, words are the field's."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

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


def test_every_picture_is_shown():
    shown = {Path(target).name for page in PAGES for target in LINK.findall(page.read_text())}
    assert {path.name for path in FIGURES.glob("*.svg")} <= shown


def test_the_worked_example_of_a_patch_is_the_codes_own():
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Adding a patch")[1].split("\n## ")[0]
    shown = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    code = (ROOT / "matex_tf/hooks/functions.py").read_text().splitlines()
    assert shown and {line.strip() for line in shown} <= {line.strip() for line in code}
