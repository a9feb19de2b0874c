"""Pages as tests read them: their elements, what they ask of a network, and what a browser makes of them."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID, ROWS = {"meta", "br", "hr"}, {"tr", "td", "th"}
"""Elements that are not closed, or need not be."""


class Page(html.parser.HTMLParser):
    """The elements of a page, checked to be closed in order, with their attributes and the text in them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID | ROWS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in ROWS or self.open.pop() == tag

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def assert_asks_for_nothing(text, read):
    """No element and no style of the page names anything outside of it."""
    assert {tag for tag, _ in read.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "image",
        "use",
    } == set()
    for tag, attributes in read.elements:
        assert set(attributes) & {"src", "href", "xlink:href", "srcset", "action", "background"} == set(), tag
    assert not re.search(r"url\(|@import|https?:|//[a-z]|fetch|XMLHttp|import\(", text)


def charts_of(text):
    """The data that a page of this `text` draws its charts from: "charts", "runs", "axes"."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def curves_of(text, title):
    """The curves of the chart of this `title`, by their names."""
    (chart,) = (one for one in charts_of(text)["charts"] if one["title"] == title)
    return {curve["name"]: curve for curve in chart["curves"]}


def click_on(key):
    """The script that clicks a key."""
    return f"document.querySelector('button[data-of=\"{key}\"]').click()"


def shown_in(browser, text, folder, script):
    """What a browser makes of a page of this `text`, once the `script` has run."""
    (folder / "a.html").write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    shown = subprocess.run(
        [*command, "--dump-dom", f"file://{folder / 'a.html'}"], capture_output=True, text=True, timeout=120
    )
    return Page(shown.stdout)
