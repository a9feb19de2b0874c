"""However far rank 0 is ahead or behind, another rank finds its files as the script alone does."""

import subprocess
import sys
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.waits


@pytest.mark.parametrize("seeds", [("0", "400"), ("1114", "1115")])
def test_random_scripts_find_what_they_find_alone(seeds):
    command = [sys.executable, str(Path(__file__).with_name("ahead_case.py")), *seeds]
    found = subprocess.run(command, env=launch.environment(), capture_output=True, text=True, timeout=200)
    assert found.returncode == 0 and "wrong: 0" in found.stdout, found.stdout + found.stderr
