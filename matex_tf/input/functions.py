"""Splits the function of a `tf.data` map: a front that runs in the script's order, and a back that can be deferred.

Ops with effects, and ops whose results vary, stay in front with all their inputs: every rank runs them for every
    element, in order. The other ops give the same results for the same tensors, at any time and on any rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from typing import Any

from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import real_files
from matex_tf.sharding.slice_bounds import list_pipeline

PYTHON = frozenset(("PyFunc", "EagerPyFunc"))


class Part:
    """Ops of a function's graph that are created again in another graph.

    ops: in an order in which they can run.
    takes, gives: tensors of the function's graph.
    awaits: the ops that must run before any result is used.
    """

    def __init__(self, ops: Sequence[Any], takes: Sequence[Any], gives: Sequence[Any], awaits: Sequence[Any] = ()):
        self.ops, self.takes, self.gives, self.awaits = list(ops), list(takes), list(gives), list(awaits)

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """The results for these inputs, in the current graph."""
        graph = tf.compat.v1.get_default_graph()
        tensors = {id(one): tensor for one, tensor in zip(self.takes, inputs, strict=True)}
        made = dict[int, Any]()
        for op in self.ops:
            given = [tensors[id(one)] for one in op.inputs]
            given = [graph.capture(one) if one.graph is not graph else one for one in map(tf.convert_to_tensor, given)]
            before = [made[id(one)] for one in op.control_inputs if id(one) in made]
            device = tf.device(op.device) if op.device else contextlib.nullcontext()
            with device, tf.control_dependencies(before):
                attributes = dict(op.node_def.attr.items())
                dtypes = [one.dtype for one in op.outputs]
                new = graph._create_op_internal(op.type, given, dtypes, name=op.name, attrs=attributes)
            made[id(op)] = new
            for old, one in zip(op.outputs, new.outputs):
                one.set_shape(old.shape)
                tensors[id(old)] = one
        gives = [tensors[id(one)] for one in self.gives]
        if not self.awaits:
            return gives
        with tf.control_dependencies([made[id(op)] for op in self.awaits]):
            return [tf.identity(one) for one in gives]


class Split:
    """The function of a pipeline, a ConcreteFunction of flat tensors, in two parts.

    front: computes, from an element, the tensors that the back needs; None if nothing must run in order.
    back: computes the results from the inputs `held`, the front's results, and the captured tensors.
    held: the indices of the inputs that the back needs.
    front_takes: the indices of the inputs that the front needs.
    ordered: the types of the ops because of which there is a front.
    captured: further inputs of both parts: tensors outside of all pipeline graphs.
    writes, reads: the identities of the captured tensors that ops of the front, and ops of the back, use.
    """

    def __init__(self, function: Any):
        graph = function.graph
        self.captured = list(function.captured_inputs)
        inner = graph.inputs[len(graph.inputs) - len(self.captured) :]
        outer = {id(one): id(captured) for one, captured in zip(inner, self.captured)}
        self.inputs = graph.inputs[: len(graph.inputs) - len(self.captured)]
        given = set(map(id, graph.inputs))
        ordered = _list_ordered(graph)
        self.ordered = sorted({op.type for op in ordered})
        outputs = [_find_origin(one) for one in graph.outputs]
        first = _find_needed(ordered, given)
        in_front, given_back = set(map(id, first)), given | _list_outputs(first)
        roots = [one.op for one in outputs if id(one) not in given]
        computed = _find_needed(roots, given_back, in_front, and_awaited=True)
        awaited = _list_awaited(graph, first)
        rest = _find_needed([*roots, *awaited], given_back, in_front, and_awaited=True)
        needed = {id(one): one for op in rest for one in op.inputs} | {id(one): one for one in outputs}
        made = {id(one) for op in rest for one in op.outputs}
        crossing = [one for key, one in needed.items() if key not in made and all(one is not other for other in inner)]
        self.held = [number for number, one in enumerate(self.inputs) if any(one is other for other in crossing)]
        crossing = [one for one in crossing if id(one) not in given]
        held = [self.inputs[number] for number in self.held]
        order = {id(op): number for number, op in enumerate(graph.get_operations())}

        def arrange(ops: list[Any]) -> list[Any]:
            return sorted(ops, key=lambda op: order[id(op)])

        self.front = Part(arrange(first), [*self.inputs, *inner], crossing) if ordered else None
        done = in_front | {id(op) for op in computed}
        awaits = [op for op in awaited if id(op) not in done]
        self.back = Part(arrange(rest), [*held, *crossing, *inner], outputs, awaits)
        taken = {id(one) for op in first for one in op.inputs}
        changing = (op for op in ordered if op.type not in pipelines.READS)
        self.writes = {outer[id(one)] for op in changing for one in op.inputs if id(one) in outer}
        self.reads = {outer[id(one)] for op in rest for one in op.inputs if id(one) in outer}
        self.front_takes = [number for number, one in enumerate(self.inputs) if id(one) in taken]

    def build_front(self, element: Sequence[Any]) -> list[Any]:
        """The results of the front, from the flat tensors of an element, of which only `front_takes` are used."""
        return self.front.build([*element, *self.captured]) if self.front else []

    def build_back(self, travelling: Sequence[Any]) -> list[Any]:
        return keep_apart(self.back.build([*travelling, *self.captured]))

    def trace_back(self) -> Any:
        """The back as a ConcreteFunction of the travelling tensors."""
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in self.back.takes[: self.travelling]]
        function = tf.function(
            lambda *given: self.back.build([*given, *self.captured]), autograph=False, input_signature=specs
        )
        return function.get_concrete_function()

    @property
    def travelling(self) -> int:
        """The number of inputs of the back, without captured tensors."""
        return len(self.back.takes) - len(self.captured)

    @property
    def computes_with(self) -> list[int]:
        """The indices of the inputs that ops of the back use, and do not merely pass on."""
        taken = {id(one) for op in self.back.ops for one in op.inputs}
        return [number for number in self.held if id(self.inputs[number]) in taken]

    @property
    def is_work(self) -> bool:
        """Whether the back computes or checks anything."""
        return bool(self.back.ops)

    @property
    def passed(self) -> list[int | None]:
        """For each output, the index of the travelling tensor that it equals; None if it is computed."""
        found = [id(one) for one in self.back.takes[: self.travelling]]
        return [found.index(id(one)) if id(one) in found else None for one in self.back.gives]


def _list_awaited(graph: Any, first: Iterable[Any]) -> list[Any]:
    """The ops that run although no output needs their tensors: all with effects, and all that other ops wait for."""
    copies = [one for output in graph.outputs for one in _list_copies(output)]
    found = [one for op in (*first, *copies) for one in op.control_inputs]
    found += filter(_has_effect, graph.get_operations())
    return list({id(op): op for op in found if op.type != "Placeholder"}.values())


def _has_effect(op: Any) -> bool:
    """Whether a function runs this op even if no output needs it."""
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(op.type)
    return known is None or known.is_stateful


def _list_copies(tensor: Any) -> list[Any]:
    found = []
    while tensor.op.type == "Identity":
        found.append(tensor.op)
        tensor = tensor.op.inputs[0]
    return found


def _find_origin(tensor: Any) -> Any:
    """The tensor that this one is a copy of. `_list_awaited` finds all ops that a copy waits for."""
    copies = _list_copies(tensor)
    return copies[-1].inputs[0] if copies else tensor


def _list_outputs(ops: Iterable[Any]) -> set[int]:
    return {id(one) for op in ops for one in op.outputs}


def _list_ordered(graph: Any) -> list[Any]:
    """The ops that must run for each element in the script's order, and ops that read state which these ops change."""
    found = [op for op in graph.get_operations() if _is_ordered(op)]
    written = {id(one) for op in found for one in op.inputs if one.dtype.name == "resource"}
    near = _list_near([op for op in found if _changes_anything(op)], graph)
    known = set(map(id, found))
    reads = (op for op in graph.get_operations() if id(op) not in known and _reads_state(op))
    return [*found, *(op for op in reads if id(op) in near or not written.isdisjoint(map(id, op.inputs)))]


def _list_near(changing: Sequence[Any], graph: Any) -> set[int]:
    """The ops that always run before the given ones, and those that always run after them."""
    before, pending = set[int](), list(changing)
    while pending:
        found = [one for one in _list_previous(pending.pop()) if id(one) not in before]
        before.update(map(id, found))
        pending += found
    behind = set(map(id, changing))
    for op in graph.get_operations() if behind else ():
        if not behind.isdisjoint(map(id, _list_previous(op))):
            behind.add(id(op))
    return before | behind


def _list_previous(op: Any) -> list[Any]:
    return [*op.control_inputs, *(one.op for one in op.inputs)]


def _reads_state(op: Any) -> bool:
    """Whether an op, or one in a function that it calls, reads state that may change: a file, a variable."""
    return any(node.op in pipelines.READS for node in graph_ops.iterate_nodes(op.graph, [op]))


def _changes_anything(op: Any) -> bool:
    """Whether an op in front may change more than the resources that it takes and later random numbers."""
    return any(map(_is_wide, graph_ops.iterate_nodes(op.graph, [op])))


def _is_wide(node: Any) -> bool:
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(node.op)
    if known is None:
        return True
    types = {one.type for one in known.input_arg}
    for one in known.input_arg:
        types.update(node.attr[one.type_list_attr].list.type if one.type_list_attr else ())
    draws = any(one.name == "seed2" for one in known.attr)
    return _must_run(node) and not draws and types_pb2.DT_RESOURCE not in types


def _is_ordered(op: Any) -> bool:
    """Whether an op, or one in a function that it calls, must run in order; unknown ops must."""
    nodes = list(graph_ops.iterate_nodes(op.graph, [op]))
    names = {name for node in nodes for name in graph_ops.list_functions(node)}
    if any(getattr(op.graph._get_function(name), "cached_definition", None) is None for name in names):
        return True
    return any(map(_must_run, nodes))


def _must_run(node: Any) -> bool:
    from tensorflow.python.framework import op_def_registry

    finds_files = node.name.split("/")[-1].startswith(real_files.PLACES_OF_FILES)  # ours, on ranks above 0
    if finds_files or node.op in pipelines.CALLS | pipelines.HARMLESS or node.op == "Placeholder":
        return False
    known = op_def_registry.get(node.op)
    return known is None or known.is_stateful


def _find_needed(
    ops: Iterable[Any], given: set[int], without: Container[int] = (), and_awaited: bool = False
) -> list[Any]:
    """These ops and all ops that they need, up to the tensors `given`, without those of the ids `without`.

    and_awaited: include the ops that they wait for.
    """
    found: dict[int, Any] = {}
    pending = list(ops)
    while pending:
        op = pending.pop()
        if id(op) not in found and id(op) not in without and op.type != "Placeholder":
            found[id(op)] = op
            pending += [one.op for one in op.inputs if id(one) not in given]
            pending += op.control_inputs if and_awaited else ()
    return list(found.values())


def keep_apart(tensors: Sequence[Any]) -> list[Any]:
    """Tensors across which TensorFlow does not merge sums: alone, it optimizes each function of the
    script separately.
    """

    def keep(tensor: Any) -> Any:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor
        shape = tf.TensorShape(None if tensor.shape.rank is None else [None] * tensor.shape.rank)
        return tf.raw_ops.EnsureShape(input=tensor, shape=shape)

    return list(map(keep, tensors))


def tell_conflict(dataset: Any) -> str:
    """Text that names state which one function of a pipeline changes and another one reads; "" if there is none.

    Every rank would change it for each element, and read it for its own elements later, after further changes.
    """
    functions = [one.function for step in list_pipeline(dataset) for one in step._functions()]
    handles = [{id(one) for one in function.captured_inputs if one.dtype.name == "resource"} for function in functions]
    if sum(map(len, handles)) == len(set[int]().union(*handles)):
        return ""
    splits = list(map(Split, functions))
    is_read = any(one.writes & other.reads & held for one in splits for other, held in zip(splits, handles))
    return "a variable or a table that one function changes and another one reads" if is_read else ""


def reads_changing(function: Any) -> bool:
    """Whether a ConcreteFunction reads state that eager code can change: variables, and tables that can grow.

    Files count as data, which do not change.
    """
    captured = dict(zip(map(id, function.graph.inputs[len(function.inputs) - len(function.captured_inputs) :]),
                        function.captured_inputs))  # fmt: skip
    tables = [op for op in function.graph.get_operations() if op.type in _TABLES and id(op.inputs[0]) in captured]
    fixed = sum(_is_fixed_table(captured[id(op.inputs[0])], op) for op in tables)
    nodes = list(graph_ops.iterate_nodes(function.graph))
    return any(one.op in _VARIABLES for one in nodes) or sum(one.op in _TABLES for one in nodes) > fixed


_VARIABLES = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_TABLES = ("LookupTableFindV2", "LookupTableFind", "LookupTableSizeV2")


def _is_fixed_table(handle: Any, op: Any) -> bool:
    """Whether a table is immutable: it refuses even an insertion of no keys."""
    if op.type != "LookupTableFindV2" or not hasattr(handle, "numpy"):
        return False
    keys, values = (tf.zeros([0], one.dtype) for one in (op.inputs[1], op.inputs[2]))
    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=keys, values=values)
    except tf.errors.OpError as error:
        return isinstance(error, (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError))
    return False
