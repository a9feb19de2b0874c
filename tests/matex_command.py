"""The `matex` command in a process of its own, for the tests of what it prints and returns."""

from __future__ import annotations

import sys

import launch

PLAIN = {"MATEX_DISABLE": "1"}  # the ranks are plain Python: what is tested is the launching


def matex(*words, env=None, timeout=60, cwd=None):
    """Runs `python -m matex_tf.launch.cli words`."""
    return launch.execute(
        [sys.executable, "-m", "matex_tf.launch.cli", *map(str, words)], launch.environment(env), timeout, cwd
    )
