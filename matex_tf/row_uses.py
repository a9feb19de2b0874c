"""What a script wants with the number of rows that it asks a batch for, read from its source.

`total += loss * len(x)`, `seen += x.shape[0]` and `if len(x) < 64: continue` are its books, and mean the whole batch;
`tf.zeros([x.shape[0], 3])` and `x[: len(x) // 2]` are about the rows that are there.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
from collections.abc import Iterator
from types import CodeType
from typing import Any

BOOKS, ROWS, UNCLEAR = "books", "rows", "unclear"

# What gives a number on; of methods and functions of modules, by their last name.
_THROUGH = {"float", "int", "abs", "round", "str", "max", "min"}
_CONVERTS = {"cast", "constant", "convert_to_tensor", "array", "asarray", "float32", "float64", "int32", "int64"}
_KEEPS = {"print", "format", "append", "add", "update", "write", "log", "debug", "info", "warning"}
_KEEPS |= {"set_postfix", "set_description", "extend"}
_DEEP = 50


def use_of(code: CodeType, instruction: int, line: int) -> str:
    """What the expression that asks for the rows is for: BOOKS, ROWS, or UNCLEAR where it is both or cannot be seen.

    Args:
        code: the function, or module, that asks, by `len(x)`, `x.shape[0]` or `tf.shape(x)`.
        instruction: where in it, as `f_lasti` of its frame says.
        line: that place's line.
    """
    source = _source(code.co_filename)
    if source is None:
        return UNCLEAR
    found = {source.use(node) for node in source.asking(_span(code, instruction), line)}
    return found.pop() if len(found) == 1 else UNCLEAR


@functools.lru_cache(maxsize=1024)
def is_library(path: str) -> bool:
    """Whether the source file at `path` is a library's, Python's or ours, and not the script's."""
    return path.startswith("<frozen") or any(
        (
            *(part in path for part in ("site-packages", "dist-packages", f"lib{os.sep}python")),
            os.path.dirname(os.path.abspath(path)).startswith(os.path.dirname(__file__)),
        )
    )


def _span(code: CodeType, instruction: int) -> tuple[int, ...] | None:
    """First and last line, first and last column of an instruction; None where Python does not keep them."""
    if not hasattr(code, "co_positions"):
        return None
    spans = _spans(code)
    span = spans[instruction // 2] if instruction // 2 < len(spans) else (None,)
    return None if None in span else span


@functools.lru_cache(maxsize=256)
def _spans(code: CodeType) -> list[tuple]:
    return list(code.co_positions())


@functools.lru_cache(maxsize=64)
def _source(path: str) -> _Source | None:
    lines = linecache.getlines(path)
    try:
        return _Source(ast.parse("".join(lines))) if lines else None
    except SyntaxError:
        return None


class _Source:
    """A parsed file, in which every node knows the one that it is part of."""

    def __init__(self, tree: ast.AST):
        self.tree = tree
        self.parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def asking(self, span: tuple[int, ...] | None, line: int) -> list[ast.AST]:
        """The expressions that ask for rows at `span`, or on `line` where that is not known."""
        nodes = [node for node in ast.walk(self.tree) if _asks(node)]
        if span is None:
            return [node for node in nodes if node.lineno <= line <= node.end_lineno]
        wanted = (span[0], span[1], span[2], span[3])
        return [
            node for node in nodes if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == wanted
        ]

    def use(self, node: ast.AST) -> str:
        if isinstance(node, ast.Call) and not _is_len(node):  # tf.shape(x): of its numbers, the first
            node = self.parents[id(node)]
            if not _is_first(node):
                return ROWS
        found = set(self._ends(node, 0))
        if found == {BOOKS}:
            return BOOKS
        return ROWS if found <= {ROWS} else UNCLEAR

    def _ends(self, node: ast.AST, deep: int) -> Iterator[str]:
        """What the value of `node` ends up as."""
        parent = self.parents.get(id(node))
        if deep > _DEEP or parent is None:
            yield UNCLEAR
        elif isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv)) and node is parent.right:
            yield BOOKS  # what is divided by it is an average
        elif isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.List, ast.Tuple, ast.Starred, ast.keyword)):
            yield from self._ends(parent, deep + 1)
        elif isinstance(parent, ast.Call):
            yield from self._ends_of_call(parent, node, deep)
        elif isinstance(parent, (ast.Compare, ast.If, ast.IfExp, ast.While, ast.Assert)):
            yield from self._ends_of_test(parent, node, deep)
        elif isinstance(parent, (ast.AugAssign, ast.FormattedValue)):
            yield BOOKS
        elif isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            yield from self._ends_of_names(parent, node, deep)
        elif isinstance(parent, (ast.Subscript, ast.Slice, ast.For)):
            yield ROWS
        elif not isinstance(parent, ast.Expr):
            yield UNCLEAR

    def _ends_of_call(self, call: ast.Call, node: ast.AST, deep: int) -> Iterator[str]:
        name = _last_name(call.func)
        if name in _KEEPS:
            yield BOOKS
        elif node is call.func:
            yield UNCLEAR
        elif name in _THROUGH or (name in _CONVERTS and call.args[:1] == [node]):
            yield from self._ends(call, deep + 1)
        else:
            yield ROWS

    def _ends_of_test(self, parent: ast.AST, node: ast.AST, deep: int) -> Iterator[str]:
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            yield from self._ends(parent, deep + 1)
            return
        within = parent
        while isinstance(within, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            within = self.parents[id(within)]
        yield ROWS if isinstance(within, ast.While) else BOOKS

    def _ends_of_names(self, assignment: ast.AST, node: ast.AST, deep: int) -> Iterator[str]:
        targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                yield UNCLEAR
            elif any(_loads(part, target.id) for part in ast.walk(assignment)):
                yield BOOKS  # total = total + ...
            else:
                for use in ast.walk(self._scope(assignment)):
                    if _loads(use, target.id):
                        yield from self._ends(use, deep + 1)
        if isinstance(assignment, ast.NamedExpr):
            yield from self._ends(assignment, deep + 1)

    def _scope(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
            node = self.parents[id(node)]
        return node


def _loads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _asks(node: ast.AST) -> bool:
    return _is_len(node) or _is_first(node) or (isinstance(node, ast.Call) and _last_name(node.func) == "shape")


def _is_len(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) == "len"


def _is_first(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0


def _last_name(function: Any) -> str | None:
    return getattr(function, "attr", None) or getattr(function, "id", None)
