"""The messages of a step: sums, and gathered rows with the op, its source line, and the bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matex_tf import settings
from matex_tf.rewrite import waves
from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import PARTIAL, SHARDED, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import script_frames


class Gathering(NamedTuple):
    """Gathered rows of one value. bytes: of each row; None if unknown."""

    op: str
    place: str
    bytes: int | None


class Report(NamedTuple):
    """collectives: synchronizations of the ranks in a step, outside of loops. bytes: of all sums; None if unknown.

    gatherings: the gathered values, each with the first op that needs it.
    """

    collectives: int
    bytes: int | None
    gatherings: list[Gathering]


def describe(program: Program) -> Report:
    collectives = len(waves.schedule(program, [WHOLE] * len(program.outputs)))
    rows: dict[int, Gathering] = {}
    for value, node in _list_needs(program, [WHOLE] * len(program.outputs)):
        if value.placement.kind == SHARDED:
            op = "the result" if node is None else node.type
            made = value.tensor.op if node is None else node.op
            rows.setdefault(id(value), Gathering(op, find_line(made), count_bytes(value, value.placement.axis)))
    return Report(collectives, count_summed_bytes(program), list(dict.fromkeys(rows.values())))


def count_summed_bytes(program: Program) -> int | None:
    """Bytes of all sums; None if unknown."""
    needs = _list_needs(program, [WHOLE] * len(program.outputs))
    sums = {id(value): value for value, _ in needs if value.placement.kind == PARTIAL}
    sizes = [count_bytes(value) for value in sums.values()]
    return None if None in sizes else sum(one for one in sizes if one is not None)


def _list_needs(program: Program, gives: Sequence[Placement]) -> Iterator[tuple[Value, Node | None]]:
    """The values that become whole, each with the ops that need it; None: the result of the program, brought to
    `gives`.
    """
    for value, need, node in program.iterate_needs(gives):
        if needs_exchange(value.placement, need):
            yield value, node
    for body in (body for node in program.nodes for body in node.bodies):
        yield from _list_needs(body, body.gives)


def count_bytes(value: Value, axis: int | None = None) -> int | None:
    """Bytes of a tensor, or of one row of it along `axis`."""
    shape = value.shape
    if shape is None or not value.dtype.size:
        return None
    sizes = [size for at, size in enumerate(shape) if at != axis]
    return None if None in sizes else math.prod(size for size in sizes if size is not None) * value.dtype.size


def find_line(op: Any) -> str:
    """The innermost source line of the script that created an op; a line of a library if the script has none."""
    frames = list(getattr(op, "traceback", None) or [])
    own = [one for one in frames if not script_frames.is_library(one.filename) and not one.filename.startswith("<")]
    if not own:
        return f"'{op.name}'"
    return f"{os.path.basename(own[-1].filename)} line {own[-1].lineno}"


def tell(report: Report) -> str:
    """The line of `--explain` about the step."""
    size = "sums" if report.bytes is None else f"sums of {settings.format_bytes(report.bytes)}"
    found = [f"{report.collectives} collective{'s' if report.collectives != 1 else ''} a step, {size}"]
    for one in report.gatherings:
        amount = "rows" if one.bytes is None else f"{settings.format_bytes(one.bytes)} a row"
        found.append(f"gathered for {one.op} ({one.place}): {amount}")
    return "; ".join(found)
