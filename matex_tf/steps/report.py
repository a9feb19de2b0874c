"""The collectives of a step as `--explain` prints them: their number, the bytes of sums, and each gathered tensor.

`adapt` reads the bytes of sums, and microbatches the source lines of ops.
"""

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
    """Gathered rows of one value: the op that needs them, its source line, and the bytes of a row; None if unknown."""

    op: str
    place: str
    bytes: int | None


class Report(NamedTuple):
    """The collectives of a step.

    collectives: the number of waves, in which ranks synchronize, outside of loops.
    bytes: the bytes of all sums; None if unknown.
    gatherings: the gathered values, each with the first op that needs it.
    """

    collectives: int
    bytes: int | None
    gatherings: list[Gathering]


def describe(program: Program) -> Report:
    collectives = len(waves.schedule(program, [WHOLE] * len(program.outputs)))
    gathered: dict[int, Gathering] = {}
    for value, node in _list_needs(program, [WHOLE] * len(program.outputs)):
        if value.placement.kind == SHARDED:
            name = "the result" if node is None else node.type
            op = value.tensor.op if node is None else node.op
            gathering = Gathering(name, find_line(op), count_bytes(value, value.placement.axis))
            gathered.setdefault(id(value), gathering)
    return Report(collectives, count_summed_bytes(program), list(dict.fromkeys(gathered.values())))


def count_summed_bytes(program: Program) -> int | None:
    """Bytes of all sums; None if unknown."""
    needs = _list_needs(program, [WHOLE] * len(program.outputs))
    sums = {id(value): value for value, _ in needs if value.placement.kind == PARTIAL}
    sizes = [count_bytes(value) for value in sums.values()]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _list_needs(program: Program, gives: Sequence[Placement]) -> Iterator[tuple[Value, Node | None]]:
    """Each value that a collective brings to another placement, with each op that needs it.

    The op is None for a result of the program, which is brought to its placement in `gives`.
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
    sizes = [size for index, size in enumerate(shape) if index != axis]
    return None if None in sizes else math.prod(size for size in sizes if size is not None) * value.dtype.size


def find_line(op: Any) -> str:
    """The innermost source line of the script that created an op; the op's name if no line of the script did."""
    frames = list(getattr(op, "traceback", None) or [])
    for frame in reversed(frames):
        if not script_frames.is_library(frame.filename) and not frame.filename.startswith("<"):
            return f"{os.path.basename(frame.filename)} line {frame.lineno}"
    return f"'{op.name}'"


def format_report(report: Report) -> str:
    """The line of `--explain` about the step."""
    size = "sums" if report.bytes is None else f"sums of {settings.format_bytes(report.bytes)}"
    parts = [f"{report.collectives} collective{'s' if report.collectives != 1 else ''} a step, {size}"]
    for gathering in report.gatherings:
        amount = "rows" if gathering.bytes is None else f"{settings.format_bytes(gathering.bytes)} a row"
        parts.append(f"gathered for {gathering.op} ({gathering.place}): {amount}")
    return "; ".join(parts)
