"""Ranks that are threads of one process, so that a copied graph is run, not only judged."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from matex_tf.microbatches import attach
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.nodes import USUAL_SIZE
from matex_tf.rewrite.placement import BATCH, WHOLE, Placement
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Request, Slice

SECONDS = 120


class Meeting:
    """Where the threads of `count` ranks put their tensors together; each exchange is counted.

    bytes: of all tensors that rank 0 put there. requests: those that its graph has, with shapes.
    """

    def __init__(self, count: int):
        self.waves = self.bytes = 0
        self.parts: list[Any] = [None] * count
        self.barrier = threading.Barrier(count)
        self.requests: list[Request] = []

    def meet(self, rank: int, part: Any) -> list[Any]:
        self.parts[rank] = part
        self.barrier.wait(SECONDS)
        found = list(self.parts)
        self.barrier.wait(SECONDS)
        return found


class Exchanger:
    sums_early = False

    def __init__(self, meeting: Meeting, rank: Any):
        self.meeting, self.rank = meeting, rank  # where ranks share a trace, a tensor

    def exchange(self, requests: Sequence[Request], batch_slice: Any, *_: Any) -> list[Any]:
        kinds = [one._replace(tensor=None) for one in requests]

        def run(rank: Any, contributes: Any, *tensors: Any) -> list[Any]:
            if rank == 0:
                self.meeting.waves += 1
                self.meeting.bytes += sum(one.nbytes for one in tensors)
            found = self.meeting.meet(int(rank), (kinds, bool(contributes), tensors))
            assert all(part[0] == kinds for part in found), "ranks are at different collectives"
            return [
                combine(kind, [part[2][index] for part in found if part[1] or kind.owned], int(rank))
                for index, kind in enumerate(kinds)
            ]

        if not isinstance(self.rank, int) or self.rank == 0:
            self.meeting.requests += [one._replace(tensor=one.tensor.shape) for one in requests]
        given = [one.tensor for one in requests]
        made = tf.numpy_function(run, [self.rank, batch_slice.contributes, *given], [tensor.dtype for tensor in given])
        made = made if isinstance(made, list) else [made]
        for request, one in zip(requests, made):
            shape = request.tensor.shape
            known = request.kind != "gather" or shape.rank is None
            one.set_shape([None, *shape[1:]] if not known else [None] if request.cuts else shape)
        return made

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        return False


def combine(request: Request, parts: list[Any], rank: int) -> Any:
    kind, cuts = request.kind, request.cuts
    if kind == "gather":
        assert not cuts or [len(part) for part in parts] == [last - first for first, last in pairwise(cuts)]
        return np.concatenate(parts)
    dtype = parts[0].dtype
    wide = np.stack(parts).astype(np.float32) if dtype.itemsize == 2 and dtype.kind != "i" else np.stack(parts)
    with np.errstate(over="ignore"):
        whole = np.asarray({"sum": np.sum, "max": np.max, "min": np.min}[kind](wide, axis=0)).astype(dtype)
    return whole.reshape(-1)[cuts[rank] : cuts[rank + 1]] if cuts else whole


class Simulation:
    """A traced function, alone and on ranks that have so many rows each. Every rank has variables of its own.

    fixed: the numbers of the arguments that are not rows of the batch.
    rows: how many the batch has where costs are compared.
    is_open: whether the trace is for any number of rows, or for those of `arguments`.
    held: by the ids of handles of variables that ranks have in pieces, their placements.
    part_rows: how many rows of a rank are computed at a time; 0: all. `left` are then the ops that are not.
    """

    part_rows = 0

    def __init__(
        self,
        function: Any,
        arguments: Sequence[Any],
        fixed: Sequence[int] = (),
        rows: int = USUAL_SIZE,
        is_open: bool = True,
        held: Mapping[int, Placement] | None = None,
    ):
        self.fixed, self.arguments = set(fixed), [np.asarray(one) for one in arguments]
        specs = [
            tf.TensorSpec(
                [None, *one.shape[1:]] if is_open and index not in fixed else one.shape, tf.as_dtype(one.dtype)
            )
            for index, one in enumerate(self.arguments)
        ]
        function = function if hasattr(function, "get_concrete_function") else tf.function(function, autograph=False)
        self.own = function.get_concrete_function(*specs)
        graph = self.own.graph
        self.specs = [
            tf.TensorSpec(one.shape if index in self.fixed else [None, *one.shape[1:]], one.dtype)
            for index, one in enumerate(graph.inputs[: len(specs)])
        ]
        placements = [WHOLE if index in self.fixed else BATCH for index in range(len(specs))]
        held = held or {}
        placements += [held.get(id(outer), WHOLE) for outer, _ in graph.captures]
        self.program = read_program(graph, placements, rows=rows)
        self.variables = list(graph.variables)
        self.cuts = [held[id(one.handle)].cuts if id(one.handle) in held else () for one in self.variables]
        self.initial = [one.numpy() for one in self.variables]
        self.waves = self.bytes = 0
        self.left: list[Any] = []

    def run_alone(self, steps: int = 1) -> list[np.ndarray]:
        """What each step gives, and then the variables."""
        for variable, value in zip(self.variables, self.initial):
            variable.assign(value)
        found = []
        with unoptimized():
            for _ in range(steps):
                found += [one.numpy() for one in tf.nest.flatten(self.own(*map(tf.constant, self.arguments)))]
        return found + [one.numpy() for one in self.variables]

    def build(self, meeting: Meeting, rank: int | None, variables: Sequence[Any]) -> Any:
        """A trace of the copy for a rank or, without one, for all ranks: each is a part of `rows` of a call."""
        own = {id(one.handle): other.handle for one, other in zip(self.variables, variables)}
        captures = [own.get(id(outer), outer) for outer, _ in self.own.graph.captures]
        rows, flag = tf.TensorSpec([4], tf.int64), tf.TensorSpec([], tf.bool)

        def step(rows: Any, contributes: Any, *arguments: Any) -> Any:
            first, count, total, number = tf.unstack(rows)
            batch_slice = Slice(first, count, total, contributes, tf.logical_and(contributes, tf.equal(first, 0)))
            graph = tf.compat.v1.get_default_graph()
            inputs = [*arguments, *(graph.capture(outer) for outer in captures)]
            copy = Copy(batch_slice, Exchanger(meeting, number if rank is None else rank))
            if self.part_rows:
                copy.transform = functools.partial(attach.cut_program, lambda: self.part_rows, self.left, [])
            return copy.build(self.program, inputs)

        return trace_copy(step, [rows, flag, *self.specs])

    def run(self, counts: Sequence[int], steps: int = 1) -> list[list[np.ndarray]]:
        """What each rank gives, where they have so many rows of the batch, and then its variables."""
        meeting = Meeting(len(counts))
        variables = [
            [
                tf.Variable(value.reshape(-1)[cuts[rank] : cuts[rank + 1]] if cuts else value)
                for value, cuts in zip(self.initial, self.cuts)
            ]
            for rank in range(len(counts))
        ]
        if any(self.cuts) or draws(self.own.graph):
            functions = [self.build(meeting, rank, variables[rank]) for rank in range(len(counts))]
        else:
            functions = share_trace(self.build(meeting, None, variables[0]), variables)
        ends = np.cumsum([0, *counts])
        found: list[Any] = [None] * len(counts)
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            start, end = int(ends[rank]), int(ends[rank + 1])
            has = end > start
            if not has:
                start, end = 0, 1
            parts = [
                tf.constant(one if index in self.fixed else one[start:end]) for index, one in enumerate(self.arguments)
            ]
            rows = tf.constant([start, end - start, int(ends[-1]), rank], tf.int64)
            try:
                made = []
                for _ in range(steps):
                    made += [one.numpy() for one in functions[rank](rows, tf.constant(has), *parts)]
                found[rank] = made + [one.numpy() for one in variables[rank]]
            except BaseException as error:
                errors.append(error)
                meeting.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(counts))]
        with unoptimized():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise next((error for error in errors if "BrokenBarrier" not in str(error)), errors[0])
        self.waves, self.bytes = meeting.waves // steps, meeting.bytes // steps
        self.requests = meeting.requests
        for at, cuts in enumerate(self.cuts, len(found[0]) - len(self.cuts)):
            if cuts:
                whole = np.concatenate([one[at] for one in found]).reshape(self.initial[at - len(found[0])].shape)
                for one in found:
                    one[at] = whole
        return found


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
    """Functions run as they are traced: to optimize them takes TensorFlow longer. Those of launched ranks are."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def draws(graph: Any) -> bool:
    """Whether ops in a graph, or in functions that it calls, may draw random numbers from a state of their own."""
    has_state = any(op.op_def.is_stateful and "seed" in op.node_def.attr for op in graph.get_operations())
    called = graph._functions.values()  # one of `Defun` has no graph
    return has_state or any(not hasattr(one, "graph") or draws(one.graph) for one in called)


def share_trace(traced: Any, variables: Sequence[Sequence[Any]]) -> list[Callable[..., Any]]:
    """For each rank the function `traced` with its own of the `variables`; those in the trace are of the first rank."""

    def make(mine: Sequence[Any]) -> Callable[..., Any]:
        own = {id(one.handle): other.handle for one, other in zip(variables[0], mine)}
        captured = [own.get(id(outer), outer) for outer in traced.captured_inputs]
        return lambda *arguments: traced._call_flat(list(arguments), captured)

    return [make(mine) for mine in variables]


def find_difference(expected: Sequence[np.ndarray], given: Sequence[np.ndarray], tolerance: float = 1e-10) -> str:
    """The first output that differs, and by how much; empty if none does."""
    for index, (one, other) in enumerate(zip(expected, given, strict=True)):
        if one.shape != other.shape:
            return f"output {index}: shape {other.shape} for {one.shape}"
        if one.dtype.kind not in "fc":
            if not np.array_equal(one, other):
                return f"output {index}: {other} for {one}"
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, np.abs(one - other))
        scale = max(float(np.max(np.abs(one[np.isfinite(one)]), initial=0)), 1e-3)
        worst = np.inf if np.isnan(apart).any() else float(np.max(apart, initial=0))
        if worst > tolerance * scale:
            return f"output {index}: {worst:.2e} apart, of {scale:.2e}"
    return ""
