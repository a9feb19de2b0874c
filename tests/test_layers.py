"""Imports run down only, also those within functions: from the command line and the patches to the ground."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def check_layers(tmp_path: Path, add: str = "") -> subprocess.CompletedProcess:
    """What `lint-imports` says of the packages as a wheel has them; `add` is written to the end of `world/world.py`."""
    source = shutil.ignore_patterns("src", "__pycache__")
    for folder, name in (("matex_tf", "matex_tf"), ("ops", "matex_tf/ops"), ("readers", "matex_tf/readers")):
        shutil.copytree(ROOT / folder, tmp_path / name, ignore=source)
    with (tmp_path / "matex_tf" / "world" / "world.py").open("a") as file:
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
