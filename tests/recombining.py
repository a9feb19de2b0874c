"""Whether what the analysis claims of the tensors of a graph is true: the graph is run on a batch and on its slices.

Each op runs by itself, so that all tensors in the graph are compared, and one that fails on a slice fails alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from matex_tf.analysis import declarations, interpreter
from matex_tf.analysis.placement import DERIVED, EMPTY, PARTIAL, ROW_NUMBERS, ROWS, SHARDED, UNKNOWN, Placement

OPAQUE = (tf.resource, tf.variant)
_DRAWS = ("Random", "Rng", "Multinomial", "StatefulRandom", "TruncatedNormal")


class Failed:
    """What an op gives that raised an error, or that was given what such an op gives."""

    def __init__(self, error: str):
        self.error = error


class Drawn:
    """What cannot be compared: of random numbers no two runs give the same. Or of which nothing is claimed."""


def traced(function: Callable, arguments: Sequence[np.ndarray], fixed: Sequence[int] = ()) -> Any:
    """The graph of `function`, in which all arguments but those numbered in `fixed` are sharded along axis 0."""
    specs = [
        tf.TensorSpec(one.shape if index in fixed else [None, *one.shape[1:]], one.dtype)
        for index, one in enumerate(arguments)
    ]
    made = tf.function(function, autograph=False).get_concrete_function(*specs)
    for index, tensor in enumerate(made.graph.inputs[: len(arguments)]):
        if index not in fixed:
            declarations.declare_placement(tensor, ROWS)
    return made.graph


def run(graph: Any, arguments: Sequence[np.ndarray], found: Any, constants: dict[Any, Any]) -> dict[Any, Any]:
    """By `ref()`, the value of each tensor of `graph` of which `found`, its interpreter, claims anything.

    constants: those of the graph, once they were made.
    """
    values: dict[Any, Any] = {}
    for tensor, value in zip(graph.inputs, arguments):
        values[tensor.ref()] = tf.constant(value)
    for outer, inner in graph.captures:
        values[inner.ref()] = outer
    for op in graph.get_operations():
        if op.outputs and op.outputs[0].ref() in values:
            continue
        if op.outputs and all(
            found.find_placement(one).kind == UNKNOWN and not found.find_placement(one).shape for one in op.outputs
        ):
            made = [Drawn()] * len(op.outputs)
        elif op.type == "Const":
            if op not in constants:
                constants[op] = tf.constant(tf.make_ndarray(op.get_attr("value")))
            made = [constants[op]]
        elif op.type.startswith("Assign"):
            continue  # the runs are to find the same variables
        else:
            inputs = [values[one.ref()] for one in op.inputs]
            absent = next((one for one in inputs if isinstance(one, (Failed, Drawn))), None)
            if absent is None and op.type.startswith(_DRAWS) and interpreter.is_stateful(op):
                absent = Drawn()
            made = [absent] * len(op.outputs) if absent is not None else _made(op, inputs)
            if any(found.find_placement(one).kind == UNKNOWN for one in op.outputs) and isinstance(made[0], Failed):
                made = [Drawn()] * len(op.outputs)
        values.update((tensor.ref(), value) for tensor, value in zip(op.outputs, made))
    return values


def _made(op: Any, inputs: list[Any]) -> list[Any]:
    try:
        return execute.execute(op.type, len(op.outputs), inputs, _attributes(op), context.context())
    except Exception as error:
        return [Failed(str(error).splitlines()[0])] * len(op.outputs)


def _attributes(op: Any) -> tuple:
    found: list[Any] = []
    for name, value in op.node_def.attr.items():
        kind = value.WhichOneof("value")
        if name.startswith("_") or kind is None:
            continue
        if kind == "shape":
            found += [name, None if value.shape.unknown_rank else [one.size for one in value.shape.dim]]
        elif kind == "func":
            found += [name, value.func.name]
        elif kind == "list":
            field = next((one[0].name for one in value.list.ListFields()), None)
            items = list(getattr(value.list, field)) if field else []
            if field == "func":
                items = [one.name for one in items]
            elif field == "shape":
                items = [None if one.unknown_rank else [dim.size for dim in one.dim] for one in items]
            found += [name, items]
        else:
            found += [name, getattr(value, kind)]
    return tuple(found)


def wrong_claims(graph: Any, arguments: Sequence[np.ndarray], rows: Sequence[int], fixed: Sequence[int] = (),
                 tolerance: float = 1e-12) -> list[str]:  # fmt: skip
    """What the analysis claims of tensors of `graph` that is not so where the batch is cut into so many rows."""
    found = interpreter.make_interpreter(graph)
    ends = np.cumsum([0, *rows])
    constants: dict[Any, Any] = {}
    whole = run(graph, arguments, found, constants)
    parts = [
        run(graph, [one if index in fixed else one[start:end] for index, one in enumerate(arguments)], found, constants)
        for start, end in zip(ends, ends[1:])
    ]
    wrong = []
    for op in graph.get_operations():
        for tensor in op.outputs:
            placement = found.find_placement(tensor)
            mine = [one[tensor.ref()] for one in (whole, *parts)]
            if placement.kind == UNKNOWN or isinstance(mine[0], Failed) or tensor.dtype in OPAQUE:
                continue
            failed = next((one.error for one in mine if isinstance(one, Failed)), None)
            if any(isinstance(one, Drawn) for one in mine):
                continue
            reason = f"it fails on a slice: {failed}"
            if not failed:
                reason = _wrong(found, tensor, placement, mine, rows, tolerance)
            if reason:
                made_of = [_short(found.find_placement(one)) for one in op.inputs]
                wrong.append(f"{op.type} '{op.name}' of {made_of} is said to be {_short(placement)}: {reason}")
    return wrong


def _short(placement: Placement) -> str:
    default = Placement(placement.kind)
    more = [f"{name}={value}" for name, value in placement._asdict().items() if value != getattr(default, name)]
    return " ".join([placement.kind, *(one for one in more if not one.startswith(("kind", "chosen")))])


def _wrong(found: Any, tensor: Any, placement: Placement, values: list[Any], rows: Sequence[int],
           tolerance: float) -> str | None:  # fmt: skip
    """Why the whole value, values[0], is not what `placement` makes of the ranks' values after it."""
    whole, *parts = (np.asarray(one) for one in values)
    shares = [one / sum(rows) for one in rows]
    if placement.zero and any(one.any() for one in (whole, *parts)):
        return "it is not zero"
    if placement.kind == DERIVED:
        open_inputs = [
            one for one in tensor.op.inputs if one.dtype not in OPAQUE and not found.find_placement(one).is_figure
        ]
        return "it is made of what is no figure" if open_inputs else None
    if placement.kind == EMPTY:
        return None
    if placement.elements is not None:
        return _wrong_elements(placement, whole, parts, rows)
    if placement.kind == ROW_NUMBERS:
        return _wrong_numbers(placement, whole, parts, rows)
    if whole.dtype != object:
        parts = [one * share**placement.power if placement.power else one for one, share in zip(parts, shares)]
    if placement.kind == SHARDED:
        return _wrong_rows(placement, whole, parts, rows, tolerance)
    if placement.kind == PARTIAL:
        if len({one.shape for one in (whole, *parts)}) > 1:
            return "its parts have different shapes"
        made = sum(one.astype(np.complex128) for one in parts)
        return None if _close(whole, made, tolerance) else f"{whole} is not the sum of {parts}"
    same = all(one.shape == whole.shape and _close(whole, one, tolerance) for one in parts)
    return None if same else f"{whole} is not {parts}"


def _wrong_elements(placement: Placement, whole: np.ndarray, parts: list[np.ndarray],
                    rows: Sequence[int]) -> str | None:  # fmt: skip
    if whole.ndim > 1 or whole.size != len(placement.elements) or any(one.shape != whole.shape for one in parts):
        return "it is no vector of so many entries"
    for index, one in enumerate(placement.elements):
        total, mine = whole.reshape(-1)[index], [part.reshape(-1)[index] for part in parts]
        if one.sums and total != sum(mine):
            return f"entry {index} is {total}, not the sum of {mine}"
        if one.power is None:
            continue
        if any(abs(part * (count / sum(rows)) ** one.power - total) > 1e-6 for part, count in zip(mine, rows)):
            return f"entry {index} is {total} and {mine}"
        if one.value is not None and (total != one.value or one.power):
            return f"entry {index} is {total}"
        if one.unit is not None and (total != one.unit * sum(rows) or one.power != -1):
            return f"entry {index} is {total} of {sum(rows)} rows"
    return None


def _wrong_numbers(placement: Placement, whole: np.ndarray, parts: list[np.ndarray], rows: Sequence[int]) -> str | None:
    if placement.even and whole.shape[0] != (placement.unit or 1) * sum(rows):
        return "they are not as many as the rows"
    if placement.unit is None:
        return None
    starts = np.cumsum([0, *rows])[:-1] * placement.unit
    made = np.concatenate([part + start for part, start in zip(parts, starts)])
    return None if np.array_equal(whole, made) else f"{whole} are not {parts}"


def _wrong_rows(placement: Placement, whole: np.ndarray, parts: list[np.ndarray], rows: Sequence[int],
                tolerance: float) -> str | None:  # fmt: skip
    axis = placement.axis
    if axis >= whole.ndim:
        return f"it has {whole.ndim} dimensions"
    sizes = [one.shape[axis] for one in parts]
    if sum(sizes) != whole.shape[axis]:
        return f"{sizes} entries are not {whole.shape[axis]}"
    if placement.even and any(size * sum(rows) != whole.shape[axis] * count for size, count in zip(sizes, rows)):
        return f"{sizes} entries are not even over {list(rows)} rows"
    if placement.blocks:
        if None in placement.blocks:
            return None
        if [sum(placement.blocks) * count for count in rows] != sizes:
            return f"{sizes} entries are not blocks of {placement.blocks}"
        cut = [
            np.split(part, np.cumsum([block * count for block in placement.blocks])[:-1], axis)
            for part, count in zip(parts, rows)
        ]
        made = np.concatenate([one for block in zip(*cut) for one in block], axis)
    else:
        unit = placement.unit if placement.even else None
        if unit is not None and [unit * count for count in rows] != sizes:
            return f"{sizes} entries are not {placement.unit} for each row"
        made = np.concatenate(parts, axis)
    same = made.shape == whole.shape and _close(whole, made, tolerance)
    return None if same else f"{whole} is not {parts} one after the other"


def _close(whole: np.ndarray, made: np.ndarray, tolerance: float) -> bool:
    if whole.dtype == object or whole.dtype == np.bool_:
        return np.array_equal(whole, made)
    if whole.dtype in (np.float32, np.complex64, np.float16):
        tolerance = max(tolerance, 1e-5)
    return np.allclose(made, whole.astype(np.complex128), rtol=tolerance, atol=tolerance, equal_nan=True)
