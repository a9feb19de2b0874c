"""1,000 ranks that start at once: one compiles, one of each host asks for the shared lock. None locks what is built."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import launch


def storm(folder, processes, hosts, seconds):
    script = Path(__file__).with_name("start_storm.py")
    words = [sys.executable, str(script), str(folder), str(processes), str(hosts), str(seconds)]
    return json.loads(launch.execute(words, launch.environment({"MATEX_OPS_DIR": None}), 280).check().stdout)


@pytest.mark.parametrize(("processes", "hosts"), [(40, 4), pytest.param(1000, 8, marks=pytest.mark.more)])
def test_one_builds_and_one_of_each_host_asks_the_others_locks(tmp_path, processes, hosts):
    said = storm(tmp_path, processes, hosts, 3)
    assert said["compiled"] == 1 and len(said["counts"]) == processes
    asked = [counts["shared locks"] for counts in said["counts"] if "shared locks" in counts]
    assert 1 <= len(asked) <= 3 * hosts, "one that came late may ask, too"
    assert max(asked) <= 3 and max(counts.get("locks of a host", 0) for counts in said["counts"]) <= 3


@pytest.mark.parametrize("processes", [10, pytest.param(1000, marks=pytest.mark.more)])
def test_what_is_built_nobody_locks(tmp_path, processes):
    """Each opens the library and its record, and the sources, once."""
    said = storm(tmp_path, processes, 1, 0)
    assert said["compiled"] == 1 and len(said["counts"]) == processes
    for counts in said["counts"]:
        assert "shared locks" not in counts and "locks of a host" not in counts
        assert counts["others"] == 2 and counts["sources"] < 200
