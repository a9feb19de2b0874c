"""The trace of a step, as the script alone traces it, and digests by which traces are compared.

Ranks compare the digests of their traces before they share a step. In one process, a digest shows whether two calls of
a model have the same ops.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.compiled import MUST_COMPILE

_MAY_BE_FILES = {("Const", "value"), ("PrintV2", "output_stream")}
"""(op, attribute) pairs whose values may be paths of files: they differ between ranks."""
_IGNORED = "config config_proto container debug_name message metadata seed seed2 shared_name token".split()
"""Attributes that differ between traces of the same function."""


class _Tracing(threading.local):
    """The traces of steps in this thread.

    is_on: a step is being traced. Batches of a rank's own rows then get an unknown number of rows (`open_spec`), since
        ranks have different numbers.
    has_opened: a batch got an unknown number of rows in the last trace. The script alone traces with a fixed number, so
        an error in such a trace may not be the script's.
    """

    is_on = False
    has_opened = False


tracing = _Tracing()


def find_trace(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ConcreteFunction that a call runs: of a `tf.function`, or the called function itself."""
    return function.get_concrete_function(*args, **kwargs) if hasattr(function, "get_concrete_function") else function


def trace_step(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ConcreteFunction that the script's own call would run. Raises errors of the script's Python code.

    In two cases the result is instead the ConcreteFunction of a new function that only calls it:
    - XLA compiles the function. The graph of the caller has an op that says so; the function's own graph does not.
    - TensorFlow has added residuals, tensors that gradients need, to the outputs of its graph. The caller has none.
    """
    was_on, had_opened = tracing.is_on, tracing.has_opened
    tracing.is_on, tracing.has_opened = True, False
    try:
        traced = find_trace(function, args, kwargs)
        has_residuals = len(traced.graph.outputs) != len(traced.function_type.flat_outputs)
        if not has_residuals and not _is_compiled(function):
            return traced
        return tags.get_or_make_tag(traced.graph, "caller", lambda: _trace_caller(function, traced, args, kwargs))
    finally:
        tracing.is_on = was_on
        tracing.has_opened = tracing.has_opened or (was_on and had_opened)  # the trace of a step within a step


def _trace_caller(function: Any, traced: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ConcreteFunction of a function that only calls `function`, for arguments with the shapes of `traced`.

    traced: the trace of `function` for these arguments. Its inputs may have an unknown number of rows (`open_spec`).
    """
    arguments = traced.function_type.unpack_inputs(traced.function_type.bind(*args, **kwargs))
    inputs = {id(tensor): trace_input for tensor, trace_input in zip(arguments, traced.graph.inputs)}

    def make_spec(leaf: Any) -> Any:
        trace_input = inputs.get(id(leaf))
        return leaf if trace_input is None else tf.TensorSpec(trace_input.shape, trace_input.dtype)

    specs, named_specs = tf.nest.map_structure(make_spec, (args, kwargs))
    caller = tf.function(lambda *positional, **named: function(*positional, **named), autograph=False)
    return caller.get_concrete_function(*specs, **named_specs)


def _is_compiled(function: Any) -> bool:
    """Whether XLA compiles a `tf.function` or a ConcreteFunction."""
    from tensorflow.python.eager import context

    if hasattr(function, "_jit_compile"):
        return bool(function._jit_compile)
    return context.context().get_function_def(function.name).attr[MUST_COMPILE].b


def digest_graph(graph: Any, for_ranks: bool = False) -> bytes:
    """A digest of the ops of a FuncGraph: equal for two traces with the same ops, whatever their names.

    for_ranks: digest only the types and attributes of ops, in any order, and without `_MAY_BE_FILES`. Order and
        connections of ops may differ: a script may update the variables of a set.
    """
    definition = graph.as_graph_def()
    library = {function.signature.name: function for function in definition.library.function}
    return digest_nodes(definition.node, library, for_ranks, gives=[tensor.name for tensor in graph.outputs])


def digest_nodes(
    nodes: Iterable[Any], library: Any, for_ranks: bool, takes: Iterable[str] = (), gives: Iterable[str] = ()
) -> bytes:
    """`digest_graph` for node protos, each after the nodes whose outputs it takes. They call functions of `library`.

    library: function protos by name. takes, gives: the names of arguments and of results.
    """
    # Names may differ, so inputs are identified by numbers: arguments have -1, -2, ..., nodes have 0, 1, ...
    numbers = {argument_name: -1 - number for number, argument_name in enumerate(takes)}

    def identify(input_name: str) -> tuple[Any, ...]:
        """An input: whether it is a control input, the number of its node, and the output of the node."""
        node_name, *output = input_name.lstrip("^").split(":")
        return input_name[:1] == "^", numbers.get(node_name), *output

    digests = []
    for number, node in enumerate(nodes):
        numbers[node.name] = number
        digest = hashlib.blake2b(repr((node.op, [] if for_ranks else list(map(identify, node.input)))).encode())
        for attribute in sorted(node.attr):
            value = node.attr[attribute]
            # Names of functions may differ, so the ops of a called function are digested in place of its name.
            called_names = [value.func.name] if value.HasField("func") else [callee.name for callee in value.list.func]
            for function_name in filter(library.__contains__, called_names):
                function = library[function_name]
                arguments = [argument.name for argument in function.signature.input_arg]
                results = [function.ret[result.name] for result in function.signature.output_arg]
                digest.update(digest_nodes(function.node_def, library, for_ranks, arguments, results))
            may_differ = for_ranks and (node.op, attribute) in _MAY_BE_FILES
            if not (called_names or attribute[0] == "_" or attribute in _IGNORED or may_differ):
                digest.update(attribute.encode() + value.SerializeToString(deterministic=True))
        digests.append(digest.digest())
    results_digest = b"" if for_ranks else repr(list(map(identify, gives))).encode()
    return hashlib.blake2b(b"".join([*(sorted(digests) if for_ranks else digests), results_digest])).digest()


def open_spec(spec: Any) -> Any:
    """The spec of a batch with an unknown number of rows, from the spec of one with a fixed number."""

    def open_component(component_spec: Any) -> Any:
        if isinstance(component_spec, tf.TensorSpec) and component_spec.shape.rank:
            return tf.TensorSpec([None, *component_spec.shape[1:]], component_spec.dtype)
        return component_spec

    return tf.nest.map_structure(open_component, spec)
