"""Imports run down only, also those within functions; what has no types is found."""

import ast
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
    assert [line.split(":")[0] for line in checked.stdout.splitlines()] == ["matex_tf/world/world.py"], checked


SOURCES = (".py", ".cc", ".h")
MOST_LINES, MOST_LINES_OF_MODULE = 300, 4
LONG = {
    "matex_tf/settings.py",  # a table
}


def test_a_file_holds_one_idea():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in SOURCES]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES and name not in LONG} == {}


def test_a_module_says_shortly_what_it_is():
    """The blank line counts. What needs more words stands at the function that it is about."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    assert [name for name, text in texts.items() if len(text.splitlines()) > MOST_LINES_OF_MODULE] == []
    assert [name for name, text in texts.items() if text.splitlines()[1:2] not in ([], [""])] == []  # one first line


VERBS = set("""
    abort acquire add adopt advance agree allot announce answer append apply apportion ask assemble assign attach
    attempt average await become begin bind broadcast build call cancel cast catch chain change check choose claim
    clean clear clone close collect combine compare compile compute confirm continue convert copy correct count
    create cut deal decide decimate declare decode deliver derive describe digest distribute divide draw drop dump
    enable encode end ensure enter escape estimate evaluate exchange exclude excuse exempt exit expect explain
    extract fall feed fetch fill find finish fit flatten flush follow forget format forward frame gather get give
    go group grow guess hand handle hash hear hide hold identify include install interpolate interpret iterate
    join judge keep label launch lay learn leave lend let limit list load locate lock look make map mark mask
    match measure meet merge minimize mirror move multiply name need negate normalize note notice open order override
    pack pad pair parse pass patch pause permit pick place plan point poll pop predict prepare prevent print
    propose prove publish pull push put quote raise reach read rebuild recognise record redirect reduce refuse
    register remake remember remove rename renew reopen replace replay report require rescale reset reshape
    resolve restart restore resume return revoke round run sample save say scale scatter schedule search see seed
    select send serve set settle shard share shift shorten show shrink simulate skip slice sniff sort split spread
    stand start stop store strip submit subtract suggest sum summarize suppress survey swap sweep sync synchronize
    tabulate take tell time trace transfer transform translate trim trust try tune unpack unwrap update use view
    wait want watch weigh widen withdraw wrap write yield zero
""".split())  # fmt: skip
# A function that answers yes or no begins so; a conversion says from what, or to what.
OTHER_BEGINNINGS = set("""
    allows are as can chooses does ends exists fits from has have hides is keeps looks may needs to uses was
""".split())  # fmt: skip
# Of the public interface, and of what ours stand for: MPI, reprlib, os.DirEntry, TensorFlow, IPython, loaders.
FOREIGN = set("""
    Alltoallv BufferedInputStream CopyFile CreateDir DeleteFile DeleteRecursively File FileExists GetChildren
    GetMatchingFiles Iprobe IsDirectory RandomRecordReader RecordIterator RecursivelyCreateDir RenameFile Stat
    WritableFile _ipython_display_ exec_module _repr_html_ allgather allgather_rows allreduce barrier bcast
    chunk_rows inode isend local_rank local_size main metrics next_test_batch next_train_batch next_validation_batch
    now rank recognises recv rendezvous repr_bytes repr_instance settled size stat state together
""".split())  # fmt: skip
BY_DECORATOR = {"property", "cached_property", "command", "group", "register_rule"}  # a rule is named by its op
EQUATIONS = "matex_tf/planner/papers/"  # what their papers call them


def list_named(body: list[ast.stmt]) -> list[ast.FunctionDef]:
    """The functions and methods that a module names: not those within functions, which stand for what they wrap."""
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.append(node)
        elif isinstance(node, (ast.ClassDef, ast.If, ast.Try, ast.With)):
            found += list_named([*node.body, *getattr(node, "orelse", [])])
    return found


def is_verb_first(function: ast.FunctionDef) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    if function.name in FOREIGN or (function.name.startswith("__") and function.name.endswith("__")):
        return True
    if BY_DECORATOR & {ast.unparse(one).rpartition(".")[2] for one in decorators}:
        return True
    return function.name.strip("_").split("_")[0] in VERBS | OTHER_BEGINNINGS


def test_a_function_is_a_verb():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    named = {str(path.relative_to(ROOT)): list_named(ast.parse(path.read_text()).body) for path in files}
    assert [
        f"{name}: {one.name}"
        for name, found in named.items()
        for one in found
        if not name.startswith(EQUATIONS) and not is_verb_first(one)
    ] == []


def test_a_function_named_by_a_noun_is_found():
    assert not is_verb_first(list_named(ast.parse("class A:\n    def rows_of(self): ...").body)[0])
    assert is_verb_first(list_named(ast.parse("@property\ndef rows(self): ...").body)[0])
