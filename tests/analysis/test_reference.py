"""The page about placements is made of the table of rules."""

from pathlib import Path

from matex_tf.analysis import rules
from matex_tf.analysis.__main__ import format_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "placements.md"


def test_the_page_is_the_table():
    assert PAGE.read_text() == format_page(), "run: python -m matex_tf.analysis > docs/placements.md"


def test_every_rule_is_in_the_page():
    for kind in rules.RULES:
        assert f"`{kind}`" in format_page()
