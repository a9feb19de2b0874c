"""Tells the user how a step is computed: which collectives it has if ranks share it, or why every rank computes it.

Plans ask here whether ranks gain by sharing. A *program* is the graph of a step with its placements.
"""

from __future__ import annotations

import inspect
import math
import os
from typing import Any

from matex_tf import settings, tags
from matex_tf.rewrite import waves
from matex_tf.rewrite.graph_ops import iterate_nodes
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import Partial, Sharded
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import notes, script_frames
from matex_tf.steps import events
from matex_tf.world import world

_shared: set[str] = set()  # the steps that ranks share for some batches
_HEAVY = "MatMul Conv Einsum RNN Fft Cholesky Svd Qr Pool CropAndResize NonMaxSuppression".split()
"""Substrings of the types of expensive ops."""


def name_step(function: Any) -> str:
    """The name of a step, a `tf.function` or a ConcreteFunction, in messages."""
    return tags.get_or_make_tag(function, "name of the step", lambda: _make_name(function))


def _make_name(function: Any) -> str:
    if not hasattr(function, "python_function"):  # a ConcreteFunction, which does not keep its Python code
        return f"the step '{function.graph.name}'"
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None:
        return "a step"
    return f"the step '{code.co_name}' ({os.path.basename(code.co_filename)} line {code.co_firstlineno})"


def is_shared(step: str) -> bool:
    """Whether ranks share the step of this name for some batches, by another plan."""
    return step in _shared


def say_shared(step: str, program: Program) -> None:
    _shared.add(step)
    if settings.get_settings().explain:
        notes.print_note(f"{step} is sharded: each rank computes its slice of every batch. {_describe(program)}")


def say_whole_batches(step: str, why: str) -> None:
    """Tell that every rank reads and decodes all rows of the batches that a shared step takes by itself."""
    if settings.get_settings().explain and world.get_world().size > 1:
        notes.print_note(
            f"{step}: every rank reads and decodes whole batches, because {why}. Apply map, filter, batch and "
            "the like to the dataset before the function is called, and loop over the result in the function"
        )


def say_whole(step: str, why: str, is_usual: bool) -> None:
    """Tell that every rank computes a step by itself.

    is_usual: the user loses nothing, so that only `--explain` prints it.
    """
    if is_usual and not settings.get_settings().explain:
        return
    if not is_usual:
        events.computed_whole(step, why)
    if world.get_world().size == 1:
        return
    notes.print_note(
        f"{step} cannot be sharded: {why}. So every rank computes the whole batch: the result is right, training is no "
        "faster"
    )


def _describe(program: Program) -> str:
    """The line of `--explain` about the collectives of a step.

    It has the number of waves, in which ranks synchronize, outside of loops; the bytes of all sums; and the gathered
    values, each with the first op that needs it, the source line of the op, and the bytes of a row.
    """
    wave_count, summed_bytes = len(waves.schedule(program)), count_summed_bytes(program)
    sums_text = "sums" if summed_bytes is None else f"sums of {settings.format_bytes(summed_bytes)}"
    parts = [f"{wave_count} collective{'s' if wave_count != 1 else ''} a step, {sums_text}"]
    gathered_ids: set[int] = set()
    for value, node in program.iterate_exchanged():  # `node` needs `value` by a collective; None: a result
        if isinstance(value.placement, Sharded) and id(value) not in gathered_ids:
            gathered_ids.add(id(value))
            name, op = ("the result", value.tensor.op) if node is None else (node.type, node.op)
            row_bytes = count_bytes(value, value.placement.axis)
            amount = "rows" if row_bytes is None else f"{settings.format_bytes(row_bytes)} a row"
            parts.append(f"gathered for {name} ({find_line(op)}): {amount}")
    return "; ".join(dict.fromkeys(parts))


def count_summed_bytes(program: Program) -> int | None:
    """Bytes of all sums; None if unknown."""
    sums = {id(value): value for value, _ in program.iterate_exchanged() if isinstance(value.placement, Partial)}
    sizes = [count_bytes(value) for value in sums.values()]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def has_shared_work(program: Program) -> bool:
    """Whether an op that is expensive compared with the transfer of its tensors computes only this rank's rows."""
    return any(node.has_rows and _is_heavy(node.type) for node in program.iterate_nodes())


def explain_no_work(program: Program | None) -> str:
    """The reason why a program has no shared work, if its rows are gathered before its work; else "".

    Examples: a loop over parts of the batch, `x[i * n : (i + 1) * n]`, gathers all rows for its slices, and `tf.map_fn`
    for its list of rows.
    """
    if program is None or not _has_work(program):
        return ""
    exchanged = program.iterate_exchanged()
    takers_of_gathered = (node for value, node in exchanged if node and isinstance(value.placement, Sharded))
    node = next(takers_of_gathered, None)
    return f"its rows meet in {node.type} ({find_line(node.op)}), before the work that grows with them" if node else ""


def _has_work(program: Program) -> bool:
    """Whether an op of the program is expensive, or one within its loops and branches, also of complete rows."""
    ops = [node.op for node in program.nodes]
    return bool(ops) and any(_is_heavy(definition.op) for definition in iterate_nodes(ops[0].graph, ops))


def _is_heavy(op_type: str) -> bool:
    return any(name in op_type for name in _HEAVY)


def count_bytes(value: Value, axis: int | None = None) -> int | None:
    """Bytes of a tensor, or of one row of it along `axis`."""
    shape = value.shape
    if shape is None or not value.dtype.size:
        return None
    sizes = [size for index, size in enumerate(shape) if index != axis]
    return None if None in sizes else math.prod(size for size in sizes if size is not None) * value.dtype.size


def find_line(op: Any) -> str:
    """The innermost source line of the script that created an op; the op's name if no line of the script did."""
    frame = script_frames.find_script_frame(getattr(op, "traceback", None) or [])
    return f"{os.path.basename(frame.filename)} line {frame.lineno}" if frame else f"'{op.name}'"
