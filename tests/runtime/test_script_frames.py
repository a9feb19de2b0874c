"""Whose a file is, for the stack that people are shown."""

from __future__ import annotations

import pytest

from matex_tf import ops, readers, settings
from matex_tf.runtime import script_frames


@pytest.mark.parametrize("module", [settings, ops, readers, ops.records])
def test_all_of_the_package_is_ours_wherever_it_stands(module):
    """In a checkout ops/ and readers/ stand beside matex_tf/, in an install within it."""
    assert script_frames.is_library(module.__file__)


def test_scripts_are_not(tmp_path):
    assert not script_frames.is_library(str(tmp_path / "train.py"))
    assert not script_frames.is_library("<stdin>") and script_frames.is_library("<frozen runpy>")
