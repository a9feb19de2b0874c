"""Imports run down only, also those within functions; what has no types is found."""

import ast
import collections
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_tree import ROOMS, ROOT, lay_out

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
    assert [line.split(":")[0] for line in checked.stdout.splitlines()] == ["matex_tf/world/world.py"], checked.stdout


SOURCES = (".py", ".cc", ".h")
MOST_LINES, MOST_FILES, MOST_LINES_OF_MODULE = 300, 12, 4
LONG = {
    "matex_tf/settings.py",  # a table
}


def test_a_file_holds_one_idea_and_a_folder_few_files():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in SOURCES]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES and name not in LONG} == {}
    folders = collections.Counter(str(path.parent.relative_to(ROOT)) for path in files if path.name != "__init__.py")
    assert {name: count for name, count in folders.items() if count > MOST_FILES} == {}


def test_a_module_says_shortly_what_it_is():
    """The blank line counts. What needs more words stands at the function that it is about."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    assert [name for name, text in texts.items() if len(text.splitlines()) > MOST_LINES_OF_MODULE] == []
    assert [name for name, text in texts.items() if text.splitlines()[1:2] not in ([], [""])] == []  # one first line
