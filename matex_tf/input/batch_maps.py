"""Maps of whole batches that treat rows independently, as the placements of their ops show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.input.functions import keep_apart
from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.placement import BATCH, REPLICATED, SIZES, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Request, Slice


class _NoExchanger:
    """Stands in for the ranks in a copy without collectives."""

    rank = 0

    def exchange(self, requests: Sequence[Request], *_: Any, **__: Any) -> list[Any]:
        raise AssertionError(f"a map of rows needs other ranks: {[one.kind for one in requests]}")

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        return False

    def publish(self, publications: Any) -> list[Any]:
        raise AssertionError("a map of rows assigns variables")


class RowMap(NamedTuple):
    """A map of batches that a rank computes for its slice.

    are_rows: which of the flat outputs have rows.
    """

    program: Program
    captured: list[Any]
    are_rows: list[bool]

    def build(self, inputs: Sequence[Any], batch_slice: Slice) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        copy = Copy(batch_slice, _NoExchanger())
        given = [*inputs, *map(graph.capture, self.captured)]
        gives = [BATCH if one else WHOLE for one in self.are_rows]
        return keep_apart(copy.build(self.program, given, gives))


def find_row_map(function: Any, are_rows: Sequence[bool]) -> RowMap | str:
    """The RowMap of `function`, a ConcreteFunction, or the reason why it cannot be computed by rows.

    are_rows: which of the inputs have the rows of the batch.
    """
    captured = list(function.captured_inputs)
    placements = [BATCH if one else WHOLE for one in are_rows] + [WHOLE] * len(captured)
    try:
        program = read_program(function.graph, placements, takes_batches=False)
    except Exception as error:  # an error in any rule: the script's own function is always right
        return f"a map that cannot be read ({type(error).__name__}: {error})"
    found = [value.placement for value in program.outputs]
    if program.has_collectives or not all(one == BATCH or one.kind in (REPLICATED, SIZES) for one in found):
        return "a map that needs the whole batch"
    return RowMap(program, captured, [one == BATCH for one in found])
