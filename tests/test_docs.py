"""The pages: they build as a site, links lead somewhere, pictures are what their script draws, sentences are short.

Files, pages and terms that are named exist: on pages those of the code, in the code the pages.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import launch
from matex_tf.launch import cli
from matex_tf.readers import DataSet

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
GENERATED = ("settings.md", "papers.md", "commands.md", "api.md")
MADE_OF_TABLES = ("settings.md", "CHANGELOG.md")
WRITTEN = [page for page in PAGES if page.name not in (*GENERATED, "CHANGELOG.md")]
CODE = ("matex_tf", "ops", "readers")

LINK = re.compile(r"\]\(([^)\s]+)\)")
# What engineers stumbled on when they read earlier versions.
ODD = (
    "and said", "shared out", "shares out", "right, but not faster", "weighed", "hangs on", "let go of",
    "how to mend it", "at the mercy of", "reduced where they are born",
)  # fmt: skip
# No native writes these; pages that are generated have the words of the code.
STILTED = ("unless told", "anew", "those that", "that of the", "beside", "as alone", "nobody", "who is waited for")
LONGEST = 40  # words; aim at 30 (CONTRIBUTING.md)
MOST_WORDS = 20_000
MOST_TERMS = 25


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
    if page in WRITTEN:
        found = " ".join(re.sub(r"(?m)^    .*$|`[^`]*`", "", text).split())  # blocks have what programs print
        assert not [words for words in STILTED if re.search(rf"\b{words}\b", found)]
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


def test_the_site_builds_without_a_warning(tmp_path):
    """Sphinx finds links that lead nowhere, pages that no list names, and docstrings that it cannot read."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "tree")]
    launch.execute([*command, str(ROOT / "docs"), str(site)], launch.environment(), 240).check()
    index = (site / "index.html").read_text()
    assert importlib.import_module("matex_tf.version").__version__ in index
    assert "elastic" in (site / "searchindex.js").read_text(), "the search needs no network"
    assert not re.search(r"<(?:script|link)[^>]*(?:src|href)=.https?:", index), "a page asks no other machine"
    assert "--restarts" in (site / "commands.html").read_text()
    assert "FailedPreconditionError" in (site / "api.html").read_text()


def read_sources():
    """Every text file of the code, its tests and tools, with its path."""
    for folder in (*CODE, "tests", "benchmarks", "examples", "scripts"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.suffix in (".py", ".cc", ".h", ".md", ".sh", "") and path.is_file()
            if is_text and path != Path(__file__):
                yield path, path.read_text(errors="ignore")


def test_each_page_that_the_code_names_exists():
    named = {(page, path) for path, text in read_sources() for page in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert len(named) > 10
    assert not [(page, str(path)) for page, path in named if not (ROOT / page).exists()]


def find_path(name, page):
    """Whether the tree has what a page calls `name`: from the top, in a package, or in the engine."""
    above = (ROOT, page.parent, *(ROOT / folder for folder in (*CODE, "ops/src", "ops/src/engine", "tests/protocol")))
    return any((folder / name).exists() for folder in above)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_each_file_that_a_page_names_exists(page):
    tops = "matex_tf|ops|readers|tests|benchmarks|scripts|docs|sums|store|update|sequence|mpi|runtime|tensorflow"
    named = re.findall(rf"(?<![\w/.])(?:{tops})/[\w/-]+(?:\.(?:py|cc|h|md|svg))?(?![\w/*…])", page.read_text())
    assert not [name for name in named if name != "docs/_build" and not find_path(name, page)]
    examples = re.findall(r"\b(?:examples|benchmarks)/\w+\.py", page.read_text())
    assert not [name for name in examples if not (ROOT / name).exists()]


def list_terms():
    rows = re.findall(r"(?m)^\| (.+?) \| .+ \| `(.+?)` \|$", (ROOT / "docs/glossary.md").read_text())
    assert 20 <= len(rows) <= MOST_TERMS
    return rows


@pytest.mark.parametrize("term, place", list_terms())
def test_each_term_of_the_glossary_is_in_the_code(term, place):
    if "/" in place:
        assert (ROOT / place).exists()
        return
    names = place.removeprefix("matex_tf.").split(".")
    for number in range(len(names), -1, -1):
        try:
            found = importlib.import_module(".".join(["matex_tf", *names[:number]]))
        except ModuleNotFoundError:
            continue
        for name in names[number:]:
            found = getattr(found, name)
        return
    raise AssertionError(f"{term}: there is no {place}")


def test_pages_are_short():
    """A word has a letter or a digit; pages that are generated do not count, nor does the list of changes."""
    words = sum(bool(re.search(r"\w", word)) for page in WRITTEN for word in page.read_text().split())
    assert words <= MOST_WORDS


def list_code_texts():
    """The texts of the code; of one with values in it, `…` stands for each value."""
    for path, text in read_sources():
        if path.relative_to(ROOT).parts[0] not in CODE:
            continue
        if path.suffix in (".cc", ".h"):
            yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", text))
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.JoinedStr):
                yield "".join(one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_each_message_that_is_explained_is_one_that_the_code_has():
    section = (ROOT / "docs/troubleshooting.md").read_text().split("## Messages")[1].split("\n## ")[0]
    messages = re.findall(r"(?m)^\| (.+?) \|", section)[2:]
    texts = "\n".join(list_code_texts())
    assert len(messages) > 10
    for message in messages:
        parts = [part.strip(" `()") for part in re.split(r"…|\bN\b|[.:;,]| `|` ?", message)]
        assert not [part for part in parts if len(part.split()) > 1 and part not in texts], message


def list_typed_commands():
    """The `matex` commands in the blocks of pages, without settings before them and comments behind."""
    for page in WRITTEN:
        text = re.sub(r"\\\n\s*", "", page.read_text())
        for command in re.findall(r"(?m)^ {4,}(?:[A-Z_]+=\S+ )*(matex \w+ .*)$", text):
            if "…" not in command and "..." not in command.replace("1,2,4,...,", ""):
                yield page.name, re.split(r"\s+#|\s&", command)[0].strip()


@pytest.mark.parametrize("page, command", list_typed_commands())
def test_each_command_of_a_page_is_one_that_matex_takes(page, command):
    words = shlex.split(command)
    if words[1] == "run":
        assert cli.parse_run(words[2:]).target
    else:
        cli.matex.get_command(None, words[1]).make_context(words[1], words[2:])


def list_data_sets():
    """The calls of `DataSet` with a text first, of a format that the library has."""
    for name in ("data.md", "readers.md"):
        for call in re.findall(r"DataSet\(\"(?:[^()]|\([^()]*\))*\)", (ROOT / "docs" / name).read_text()):
            if not call.startswith('DataSet("NPY"'):
                yield name, call


@pytest.mark.parametrize("page, call", list_data_sets())
def test_each_data_set_of_a_page_has_options_that_there_are(page, call, tmp_path, monkeypatch):
    """They are looked at before the file, which is not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        eval(f"{call[:-1]}, rank=0, size=1)", {"DataSet": DataSet, "folder": "folder", "path": "file"})
