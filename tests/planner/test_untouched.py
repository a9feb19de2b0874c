"""`matex plan` runs a script that writes files, and leaves the user's own as they were."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import launch

CASE = Path(__file__).with_name("untouched_case.py")
PLAN = "import sys; from matex_tf.launch.cli import main; sys.exit(main())"


def contents(*folders):
    return {path: path.read_bytes() if path.is_file() else b"" for one in folders for path in one.rglob("*")}


@pytest.mark.timeout(200)
def test_no_file_is_touched_beside_the_script_or_elsewhere(tmp_path):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    shutil.copy(CASE, project / "train.py")
    (project / "old.txt").write_text("old")
    (project / "log.txt").write_text("first\n")
    np.save(project / "large.npy", np.zeros(3 << 20))
    for name in ("result.txt", "first.weights.h5", "last.keras"):
        (elsewhere / name).write_text("what the last run found")
    before = contents(project, elsewhere)
    words = [sys.executable, "-c", PLAN, "plan", "--ranks", "2", "--ranks-per-host", "1", "--steps", "8"]
    env = launch.environment({"MATEX_OUTPUT": "all", "MATEX_RECORD": str(elsewhere), "MATEX_DISABLE": "1"})
    ended = launch.execute([*words, "train.py", str(elsewhere)], env, 180, project).check()
    assert "ranks" in ended.stdout and "efficiency" in ended.stdout
    after = contents(project, elsewhere)
    assert [path.name for path in after.keys() ^ before.keys()] == []
    assert [path.name for path in before if before[path] != after[path]] == []
