"""Who is let in: nobody. Nothing that others have put is followed or loaded, and nothing listens for them."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import launch
from matex_tf import errors
from matex_tf.files import downloads
from matex_tf.runtime import temp_folders

ROOT = Path(__file__).parent.parent
SOURCES = [path for room in ("matex_tf", "ops", "readers") for path in sorted((ROOT / room).rglob("*.py"))]
# What runs what it reads, and what waits for whoever calls.
RUNS = re.compile(r"\b(c?[pP]ickle|marshal|dill|joblib|torch)\.(loads?|Unpickler)\b|\bshelve\.open\b|read_pickle")
LISTENS = re.compile(
    r"(?<!signature)(?<!function_type)\.(listen|bind|create_server|start_server|serve_forever)\b|socketserver|http\.server|xmlrpc"
)
LISTENS_IN_C = re.compile(r"\b(listen|bind|accept)\s*\(|sys/socket\.h|MPI_Open_port|MPI_Comm_accept")


def code(path: Path) -> str:
    """What a Python file does, without its comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(...)
    return ast.unparse(tree)


@pytest.mark.parametrize("wrong, text", [(RUNS, "x = pickle.loads(y)"), (LISTENS, "s.bind(('', 1))")])
def test_what_is_looked_for_would_be_found(wrong, text, tmp_path):
    (tmp_path / "file.py").write_text(f'"""Of pickle.load and bind."""\n{text}\n')
    assert len(wrong.findall(code(tmp_path / "file.py"))) == 1


def test_no_file_is_read_as_a_program():
    assert len(SOURCES) > 80
    for path in SOURCES:
        text = code(path)
        ours = text.replace(
            "pickles.load(", ""
        )  # readers/images/plain_pickles.py runs nothing: test_a_hostile_pickle_runs_nothing
        assert not RUNS.search(ours), path
        assert ours.count("allow_pickle") == ours.count("allow_pickle=False"), path


def test_nothing_in_the_source_listens():
    for path in SOURCES:
        assert not LISTENS.search(code(path)), path
    for path in (ROOT / "ops" / "src").rglob("*.cc"):
        assert not LISTENS_IN_C.search(path.read_text()), path


SCRIPT = """
import glob, os, socket, stat, tempfile
from mpi4py import MPI  # it may listen: its ranks talk to each other
MPI.COMM_WORLD.barrier()

def listening():
    inodes = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/self/net/{table}") as file:
            for line in list(file)[1:]:
                words = line.split()
                if table.startswith("udp") or words[3] == "0A":
                    inodes.add(words[9])
    mine = set()
    for handle in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{handle}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            mine.add(target)
    return mine

before = listening()
import matex_tf
import numpy as np, tensorflow as tf, keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.ones((16, 4)), np.ones((16, 2)), epochs=2, verbose=0)
open("mine", "w").write("text")
from matex_tf.runtime import real_files
from matex_tf.world import terminal
new = len(listening() - before)
with real_files.use_real_files():
    left = glob.glob(os.path.join(tempfile.gettempdir(), "matex_tf-*"))
    for_others = [path for path in left if stat.S_IMODE(os.lstat(path).st_mode) & 0o077]
server = socket.create_server(("127.0.0.1", 0))
would = len(listening() - before)
terminal.write_text(f"rank {matex_tf.rank()}: {new} of {would}, {len(left) > 1} {for_others}\\n")
"""


def test_nothing_listens_and_what_is_written_is_the_users_alone(tmp_path):
    result = launch.run(2, SCRIPT, module=False, env={"MATEX_OVERLAP": "on"}, cwd=tmp_path).check()
    for rank in range(2):
        assert f"rank {rank}: 0 of 1, True []" in result.output, result.output


def test_a_lock_of_a_download_that_is_a_link_is_refused(tmp_path):
    path, target = tmp_path / "lock", tmp_path / "precious"
    path.symlink_to(target)
    with pytest.raises(errors.SetupError):
        downloads._acquire_lock(str(path))
    assert not target.exists()
    path.unlink()
    os.close(downloads._acquire_lock(str(path)))
    assert path.stat().st_mode & 0o077 == 0


def test_links_among_temporary_files_are_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(temp_folders.tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("content")
    for name, target in (("matex_tf-test-folder", precious), ("matex_tf-test-file", precious / "file")):
        (tmp_path / name).symlink_to(target)
        os.utime(tmp_path / name, (0, 0), follow_symlinks=False)
        os.utime(target, (0, 0))
        with pytest.raises(OSError, match="symbolic links"):
            temp_folders.hold_folder(str(tmp_path / name))
    (tmp_path / "matex_tf-test-old").write_text("")
    os.utime(tmp_path / "matex_tf-test-old", (0, 0))
    temp_folders.sweep_folders("matex_tf-test-")
    assert (precious / "file").read_text() == "content"
    assert not (tmp_path / "matex_tf-test-old").exists()
