"""Splits the function of a map into a front, which runs in the script's order, and a back, which can be deferred.

Ops with effects, such as a write, and ops whose results vary, such as a random number, are in the front, with all ops
that they need. The other ops give the same results for the same tensors, at any time and on any rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite import graph_ops
from matex_tf.rewrite.subgraphs import list_consumers, reach

PYTHON = frozenset(("PyFunc", "EagerPyFunc"))
"""Ops that call Python functions."""


class Subgraph(NamedTuple):
    """Ops of a function's graph that can be created again in another graph.

    ops: the ops, in an order in which they can run.
    inputs, outputs: tensors of the function's graph.
    awaited: ops of `ops` that must run before any output is used.
    """

    ops: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    awaited: Sequence[Any] = ()

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs, in the current graph."""
        copies = {id(original): copy for original, copy in zip(self.inputs, inputs, strict=True)}
        created_ops = dict[int, Any]()
        for op in self.ops:
            controls = [created_ops[id(control)] for control in op.control_inputs if id(control) in created_ops]
            with tf.control_dependencies(controls):
                copy = copy_op(op, [copies[id(original)] for original in op.inputs], dict(op.node_def.attr.items()))
            created_ops[id(op)] = copy
            copies.update(zip(map(id, op.outputs), copy.outputs))
        outputs = [copies[id(original)] for original in self.outputs]
        if not self.awaited:
            return outputs
        with tf.control_dependencies([created_ops[id(op)] for op in self.awaited]):
            return [tf.identity(tensor) for tensor in outputs]


def copy_op(op: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Create an op of a function's graph in the current graph, with other inputs and these attributes."""
    graph = tf.compat.v1.get_default_graph()
    arguments = list(map(tf.convert_to_tensor, inputs))
    arguments = [graph.capture(argument) if argument.graph is not graph else argument for argument in arguments]
    with tf.device(op.device) if op.device else contextlib.nullcontext():
        dtypes = [tensor.dtype for tensor in op.outputs]
        copy = graph._create_op_internal(op.type, arguments, dtypes, name=op.name, attrs=attributes)
    for output, copied_output in zip(op.outputs, copy.outputs):
        copied_output.set_shape(output.shape)
    return copy


class Split:
    """The function of a pipeline, a ConcreteFunction of flat tensors, in two parts.

    Example: of `lambda path: decode(read(path)) + tf.random.normal([])`, the draw is the front. The back takes the path
    and the drawn number.

    inputs: the inputs of the function's graph without the captured tensors: the tensors of an element.
    captured: the captured tensors, further inputs of both parts from outside of the graph, such as a variable.
    front: computes, from an element, the tensors that the back needs; None if nothing must run in order.
    front_takes: the indices of the inputs that the front needs.
    back: computes the results of the function from the inputs `back_takes`, the front's results, and `captured`.
    back_takes: the indices of the inputs that the back needs.
    back_input_count: the number of inputs of the back without `captured`.
    is_work: the back computes or checks anything.
    ordered: the types of the ops because of which there is a front.
    writes, reads: the ids of the captured tensors that ops of the front may change, and that ops of the back use.
    """

    def __init__(self, function: Any):
        graph = function.graph
        self.captured = list(function.captured_inputs)
        input_count = len(graph.inputs) - len(self.captured)
        # `inner_captured` stand for `captured` in the graph.
        self.inputs, inner_captured = graph.inputs[:input_count], graph.inputs[input_count:]
        input_ids, inner_captured_ids = set(map(id, graph.inputs)), set(map(id, inner_captured))
        ordered_ops = _list_ordered(graph)
        # Without identity ops at the end, so that `passed` finds the results that equal an input.
        outputs = [_find_origin(tensor) for tensor in graph.outputs]

        # The front: the ordered ops with all that they need. The back: all other ops that results or effects need.
        front_ops = _find_needed(ordered_ops, input_ids)
        front_ids, available_ids = set(map(id, front_ops)), input_ids | _list_outputs(front_ops)
        root_ops = [tensor.op for tensor in outputs if id(tensor) not in input_ids]
        awaited_ops = _list_awaited(graph, front_ops)
        back_ops = _find_needed([*root_ops, *awaited_ops], available_ids, front_ids, and_awaited=True)

        # The tensors that the back takes: inputs of the function, and results of the front.
        used_tensors = {id(tensor): tensor for op in back_ops for tensor in op.inputs} | {
            id(output): output for output in outputs
        }
        taken_ids = used_tensors.keys() - _list_outputs(back_ops) - inner_captured_ids
        self.back_takes = [index for index, tensor in enumerate(self.inputs) if id(tensor) in taken_ids]
        front_results = [
            tensor
            for tensor_id, tensor in used_tensors.items()
            if tensor_id in taken_ids and tensor_id not in input_ids
        ]

        positions = {id(op): index for index, op in enumerate(graph.get_operations())}

        def sort_ops(ops: list[Any]) -> list[Any]:
            return sorted(ops, key=lambda op: positions[id(op)])

        self.ordered = sorted({op.type for op in ordered_ops})
        self.front = (
            Subgraph(sort_ops(front_ops), [*self.inputs, *inner_captured], front_results) if ordered_ops else None
        )
        front_inputs = {id(tensor) for op in front_ops for tensor in op.inputs}
        self.front_takes = [index for index, tensor in enumerate(self.inputs) if id(tensor) in front_inputs]

        # The outputs of the back wait for the ops of `awaited_ops` that run neither in the front nor for an output.
        ops_for_outputs = _find_needed(root_ops, available_ids, front_ids, and_awaited=True)
        run_anyway_ids = front_ids | set(map(id, ops_for_outputs))
        awaited_ops = [op for op in awaited_ops if id(op) not in run_anyway_ids]
        back_inputs = [*(self.inputs[index] for index in self.back_takes), *front_results]
        self.back_input_count = len(back_inputs)
        self.back = Subgraph(sort_ops(back_ops), [*back_inputs, *inner_captured], outputs, awaited_ops)
        self.is_work = bool(back_ops)

        outer_ids = {id(tensor): id(captured) for tensor, captured in zip(inner_captured, self.captured)}
        changing_ops = (op for op in ordered_ops if op.type not in pipelines.READS)
        self.writes = {outer_ids[id(tensor)] for op in changing_ops for tensor in op.inputs if id(tensor) in outer_ids}
        self.reads = {outer_ids[id(tensor)] for op in back_ops for tensor in op.inputs if id(tensor) in outer_ids}

    def build_front(self, element: Sequence[Any]) -> list[Any]:
        """The results of the front, from the flat tensors of an element. Tensors not in `front_takes` may be None."""
        return self.front.build([*element, *self.captured]) if self.front else []

    def build_back(self, inputs: Sequence[Any]) -> list[Any]:
        """The results of the function, from the inputs `back_takes` and the results of the front."""
        return keep_apart(self.back.build([*inputs, *self.captured]))

    def trace_back(self) -> Any:
        """The back as a ConcreteFunction of the tensors that `build_back` takes."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.back.inputs[: self.back_input_count]]
        return trace_own(lambda *tensors: self.back.build([*tensors, *self.captured]), input_signature=specs)

    @property
    def computes_with(self) -> list[int]:
        """The indices of the inputs that ops of the back use, and do not merely pass on."""
        used = {id(tensor) for op in self.back.ops for tensor in op.inputs}
        return [index for index in self.back_takes if id(self.inputs[index]) in used]

    @property
    def passed(self) -> list[int | None]:
        """For each result, the index of the input of `build_back` that it equals; None if it is computed."""
        ids = list(map(id, self.back.inputs[: self.back_input_count]))
        return [ids.index(id(tensor)) if id(tensor) in ids else None for tensor in self.back.outputs]


def _list_awaited(graph: Any, front: Iterable[Any]) -> list[Any]:
    """The ops that a function runs although no output needs their tensors: ops with effects, and ops for which the
    front or a copy of an output waits.
    """
    copies = [copy for output in graph.outputs for copy in _list_copies(output)]
    awaited = [control for op in (*front, *copies) for control in op.control_inputs]
    # Stateful ops run even if no output needs them.
    awaited += (op for op in graph.get_operations() if graph_ops.is_stateful(op.type))
    return list({id(op): op for op in awaited if op.type != "Placeholder"}.values())


def _list_copies(tensor: Any) -> list[Any]:
    """The chain of identity ops that ends with this tensor, the last one first."""
    copies = []
    while tensor.op.type == "Identity":
        copies.append(tensor.op)
        tensor = tensor.op.inputs[0]
    return copies


def _find_origin(tensor: Any) -> Any:
    """The tensor of which this one is a copy. The ops that a copy waits for are not lost: see `_list_awaited`."""
    copies = _list_copies(tensor)
    return copies[-1].inputs[0] if copies else tensor


def _list_outputs(ops: Iterable[Any]) -> set[int]:
    """The ids of the outputs of ops."""
    return {id(tensor) for op in ops for tensor in op.outputs}


def _list_ordered(graph: Any) -> list[Any]:
    """The ops that must run for each element in the script's order, and the ops that read state which these change."""
    ordered_ops = [op for op in graph.get_operations() if _is_ordered(op)]
    written_ids = {id(tensor) for op in ordered_ops for tensor in op.inputs if tensor.dtype.name == "resource"}
    related_ids = _find_related([op for op in ordered_ops if _changes_anything(op)])
    ordered_ids = set(map(id, ordered_ops))
    # A read must be in order if it reads a resource that an ordered op takes, or if the graph orders the read and an op
    # that may change any state.
    reading_ops = (op for op in graph.get_operations() if id(op) not in ordered_ids and _reads_state(op))
    return [
        *ordered_ops,
        *(op for op in reading_ops if id(op) in related_ids or not written_ids.isdisjoint(map(id, op.inputs))),
    ]


def _find_related(changing_ops: Sequence[Any]) -> set[int]:
    """The ids of these ops, of the ops on which one of them depends, and of the ops that depend on one of them.

    The graph fixes the order of each such op and the op of `changing_ops`.
    """
    earlier_ops = reach(changing_ops, lambda op: [*op.control_inputs, *(tensor.op for tensor in op.inputs)])
    later_ops = reach(changing_ops, lambda op: [*op._control_outputs, *list_consumers(op)])
    return set(map(id, [*earlier_ops, *later_ops]))


def _reads_state(op: Any) -> bool:
    """Whether an op, or one in a function that it calls, reads state that may change: a file, a variable."""
    return any(node.op in pipelines.READS for node in graph_ops.iterate_nodes(op.graph, [op]))


def _changes_anything(op: Any) -> bool:
    """Whether an op of the front may change any state, and not only its resources and the next random numbers."""
    return any(map(_changes_any_state, graph_ops.iterate_nodes(op.graph, [op])))


def _changes_any_state(node: Any) -> bool:
    """`_changes_anything` for one definition."""
    from tensorflow.core.framework import types_pb2

    definition = graph_ops.find_definition(node.op)
    if definition is None:
        return True
    types = {argument.type for argument in definition.input_arg}
    for argument in definition.input_arg:
        types.update(node.attr[argument.type_list_attr].list.type if argument.type_list_attr else ())
    return pipelines.is_stateful(node) and not pipelines.draws(node) and types_pb2.DT_RESOURCE not in types


def _is_ordered(op: Any) -> bool:
    """Whether an op, or one in a function that it calls, must run in order; unknown ops must."""
    nodes = list(graph_ops.iterate_nodes(op.graph, [op]))
    function_names = {function_name for node in nodes for function_name in graph_ops.list_functions(node)}
    if any(
        getattr(op.graph._get_function(function_name), "cached_definition", None) is None
        for function_name in function_names
    ):
        return True  # the ops of a called function are unknown
    return any(map(pipelines.is_stateful, nodes))


def _find_needed(
    ops: Iterable[Any], available_ids: set[int], excluded_ids: Container[int] = (), and_awaited: bool = False
) -> list[Any]:
    """These ops and all ops that they need.

    Args:
        available_ids: the ids of tensors that need no op, because they are given.
        excluded_ids: the ids of ops to leave out.
        and_awaited: include the ops that needed ops wait for.
    """

    def choose(candidates: Iterable[Any]) -> list[Any]:
        return [op for op in candidates if id(op) not in excluded_ids and op.type != "Placeholder"]

    def list_needed(op: Any) -> list[Any]:
        makers = [tensor.op for tensor in op.inputs if id(tensor) not in available_ids]
        return choose([*makers, *(op.control_inputs if and_awaited else ())])

    return reach(choose(ops), list_needed)


def require(unused: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """In a graph: `results`, which wait for the `unused` tensors, so that an error of these is raised.

    In the script alone, each function of a pipeline computes all of its results. Here several functions are one, from
    which TensorFlow would remove the ops whose results no later map takes.
    """
    if not unused:
        return list(results)
    # An op that TensorFlow neither removes nor runs before its inputs are computed.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.constant(True), data=unused)]):
        return [tf.identity(tensor) for tensor in results]


def keep_apart(tensors: Sequence[Any]) -> list[Any]:
    """Copies of the results of a function. TensorFlow does not merge sums before and after them.

    In the script alone, TensorFlow optimizes each function of a pipeline by itself. Here several functions are one.
    """

    def keep(tensor: Any) -> Any:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor
        # The shape has no sizes, so the op checks none.
        shape = tf.TensorShape(None if tensor.shape.rank is None else [None] * tensor.shape.rank)
        return tf.raw_ops.EnsureShape(input=tensor, shape=shape)

    return list(map(keep, tensors))
