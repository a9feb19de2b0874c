"""Every rank finds its files as the script alone does, and one set of files is left: rank 0's."""

import json
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

import launch

CASE = Path(__file__).with_name("view_case.py")


def prepared(folder):
    (folder / "before").mkdir(parents=True)
    (folder / "before.txt").write_text("before line\n")
    (folder / "before" / "inner.txt").write_text("inner\n")
    (folder / "remove_me").touch()
    (folder / "listed_before").mkdir()
    (folder / "listed_before" / "file").write_text("before")
    for number in range(200):
        (folder / "race" / str(number) / "deep").mkdir(parents=True)
        (folder / "race" / str(number) / "file").touch()
    (folder / "table").mkdir()
    parquet.write_table(pyarrow.table({"x": [1, 2]}), folder / "table" / "part.parquet")
    return folder


def contents(folder):
    """Every path below `folder` with what is in it, where that does not hold the time at which it was written."""
    varies = (".gz", ".zip", ".npz", ".db")
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if ".tfevents." in name:
            name = f"{path.parent.relative_to(folder)}/events"
        found[name] = path.read_bytes() if path.is_file() and not name.endswith((*varies, "events")) else None
    return found


def seen(result):
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("SEEN")]
    return json.loads(line[4:])


def private():
    folder = launch.environment()["TMPDIR"]
    return {name for name in os.listdir(folder) if name.startswith(("matex_tf-files", "matex_tf-ledger"))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = prepared(tmp_path_factory.mktemp("alone") / "work")
    return folder, seen(launch.run_alone(CASE, folder, "nobody").check())[0]


@pytest.mark.parametrize("ranks, late", [pytest.param(3, "first", marks=pytest.mark.more), (2, "others")])
def test_each_rank_finds_what_the_script_alone_finds(alone, tmp_path, ranks, late):
    before = private()
    folder = prepared(tmp_path / "work")
    found = seen(launch.run(ranks, CASE, folder, late).check())
    assert len(found) == ranks
    want = json.loads(json.dumps(alone[1]).replace(str(alone[0]), str(folder)))
    for rank, each in enumerate(found):
        for index, (here, there) in enumerate(zip(want, each, strict=True)):
            assert there == here, f"rank {rank}, number {index}"
    assert contents(folder) == contents(alone[0])
    assert private() <= before


ALL = """
import os, sys
import matex_tf
os.chdir(sys.argv[1])
open(f"of_rank_{matex_tf.rank()}", "w").close()
print("a line of rank", matex_tf.rank())
"""


def test_output_of_all_ranks(tmp_path):
    result = launch.run(2, ALL, tmp_path, env={"MATEX_OUTPUT": "all"}).check()
    assert sorted(os.listdir(tmp_path)) == ["of_rank_0", "of_rank_1"]
    assert result.stdout.count("a line of rank") == 2
