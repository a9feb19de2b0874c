"""Imports run down only, also those within functions; what has no types is found."""

import subprocess
import sys
from pathlib import Path

import pytest
from wheel_tree import ROOT, lay_out

sys.path.append(str(ROOT / "scripts"))
import check_types


def check_layers(tmp_path: Path, add: str = "") -> subprocess.CompletedProcess:
    """What `lint-imports` says of the packages as a wheel has them; `add` is written to the end of `world/world.py`."""
    with (lay_out(tmp_path) / "world" / "world.py").open("a") as file:
        file.write(add)
    tool = Path(sys.executable).with_name("lint-imports")
    command = [tool, "--config", ROOT / "pyproject.toml", "--no-cache"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_imports_run_down(tmp_path):
    checked = check_layers(tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_import_that_runs_up_is_found(tmp_path):
    checked = check_layers(
        tmp_path, "\n\ndef late():\n    from matex_tf.runtime import objects\n\n    return objects\n"
    )
    assert checked.returncode == 1 and "matex_tf.world.world -> matex_tf.runtime.objects" in checked.stdout


@pytest.mark.skipif(not check_types.has_types_of_numpy(), reason="this NumPy is too old to be checked against")
def test_a_function_without_types_is_the_only_fault_that_mypy_finds(tmp_path):
    with (lay_out(tmp_path) / "world" / "world.py").open("a") as file:
        file.write("\n\ndef late(rank):\n    return rank\n")
    checked = check_types.run_mypy(tmp_path, cache=ROOT / ".mypy_cache" / "tests", capture_output=True, text=True)
    assert [line.split(":")[0] for line in checked.stdout.splitlines()] == ["matex_tf/world/world.py"], checked
