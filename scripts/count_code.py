"""Counts what the core is to have less of: lines, replaced functions, and ways to look into what is not ours.

    python scripts/count_code.py

Prints a table: how many there are, and the most that there should be.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from matex_tf import patches
from matex_tf.files import overlay
from matex_tf.runtime.hooks import Hook, find_version

ROOT = Path(__file__).resolve().parent.parent / "matex_tf"
EXTRAS = "deploy launch monitor observe planner tune adapt resilience".split()
UPPER = "sharding rewrite steps hooks patches".split()
WEAK = ("WeakKeyDictionary", "WeakValueDictionary")
OF_FRAMES = ("_getframe", "currentframe", "walk_stack", "extract_stack")
EXCHANGED = ("__class__", "__dict__")
BESIDE = tuple(patches._ON_REQUEST)
"""Patches of a run that is checked and of a trial, which other runs do not install."""


def list_sources(keeps: Callable[[str], bool] = lambda _: True) -> list[str]:
    """The texts of the files whose path within the package `keeps` says."""
    return [path.read_text() for path in sorted(ROOT.rglob("*.py")) if keeps(path.relative_to(ROOT).as_posix())]


def is_within(path: str, folders: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def count_lines(keeps: Callable[[str], bool]) -> int:
    return sum(len(text.splitlines()) for text in list_sources(keeps))


def list_calls(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes:
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2], node


def count_exchanged(nodes: list[ast.AST]) -> int:
    """Assignments to the class or the attributes of an object, be it by `setattr`."""
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    assigned = [one for one in targets if isinstance(one, ast.Attribute) and one.attr in EXCHANGED]
    named = [ast.unparse(call.args[1]).strip("'\"") for name, call in list_calls(nodes) if name.strip("_") == "setattr"]
    return len(assigned) + sum(name in EXCHANGED for name in named)


def list_replaced(first: bool) -> set[tuple[str, str, str]]:
    """Library, module and name of what is replaced on the first rank, or on another, with the Keras that is here.

    What is replaced in each kind of metrics, or in each op of files, counts once.
    """
    return {
        (hook.library, hook.module, hook.name)
        for part, hook in patches.list_hooks()
        if part not in BESIDE and is_placed(part, hook, first)
    }


def is_placed(part: str, hook: Hook, first: bool) -> bool:
    of_others = part == "files.python" or hook.when is overlay.has_view
    return not (first and of_others) and hook.library != "tf_keras" and hook.fits(find_version(hook.library))


def list_rows() -> list[tuple[str, int, int | None]]:
    """What is counted, how many there are, and the most that there should be, if that is said."""
    nodes = [node for text in list_sources() for node in ast.walk(ast.parse(text))]
    called = [name for name, _ in list_calls(nodes)]
    named = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    rows: list[tuple[str, int, int | None]] = [
        (f"lines without {' '.join(EXTRAS)}", count_lines(lambda path: not is_within(path, EXTRAS)), 15000),
        (f"lines of {' '.join(UPPER)}", count_lines(lambda path: is_within(path, UPPER)), 9000),
    ]
    for where, first in (("the first rank", True), ("another rank", False)):
        of = [library for library, _, _ in list_replaced(first)]
        rows += [
            (f"functions replaced on {where}", len(of), 70),
            ("  of Keras", of.count("keras"), 15),
            ("  of TensorFlow", of.count("tensorflow"), None),
            ("  of others", len(of) - of.count("keras") - of.count("tensorflow"), None),
        ]
    return [
        *rows,
        ("weak dictionaries", sum(name in WEAK for name in called), 15),
        ("global statements", sum(isinstance(node, ast.Global) for node in nodes), None),
        ("uses of sys.setprofile", named.count("setprofile"), 0),
        ("uses of gc.get_referrers", named.count("get_referrers"), 0),
        ("classes and attributes exchanged", count_exchanged(nodes), 0),
        ("uses of callers' frames", sum(name in OF_FRAMES for name in called), None),
    ]


def main() -> int:
    rows = list_rows()
    width = max(len(name) for name, _, _ in rows)
    print(f"{'':{width}}   here  at most")
    for name, count, most in rows:
        print(f"{name:{width}} {count:6}  {'' if most is None else most:>7}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
