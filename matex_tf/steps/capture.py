"""The trace of a step, as the script wrote it: that of the call itself, with the sizes of its arguments."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

_state = threading.local()
_UNLIKE = frozenset(
    (
        "config",
        "config_proto",
        "container",
        "debug_name",
        "message",
        "metadata",
        "seed",
        "seed2",
        "shared_name",
        "token",
    )
)
"""Attributes that differ between traces of the same."""


def is_tracing() -> bool:
    """Whether the trace of a step is made, in which batches of each rank's own rows have any number of rows."""
    return getattr(_state, "traces", False)


def note_opened() -> None:
    """In the trace that is made, a batch of a rank's own rows has any number of rows, as it has not alone."""
    _state.has_opened = True


def has_opened() -> bool:
    """Whether that was so in the last trace of a step."""
    return getattr(_state, "has_opened", False)


def trace_step(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ConcreteFunction that a call of a `tf.function` has alone, too.

    It is that of a function which calls it, where XLA compiles it, or where TensorFlow has added to its graph what
    gradients through it need. Raises what the script's Python raises in the call.
    """
    import tensorflow as tf

    _state.traces, _state.has_opened = True, False
    try:
        own = function.get_concrete_function(*args, **kwargs)
        if not function._jit_compile and len(own.graph.outputs) == len(own.function_type.flat_outputs):
            return own
        caller = tf.function(lambda *given, **named: function(*given, **named), autograph=False)
        return caller.get_concrete_function(*args, **kwargs)
    finally:
        _state.traces = False


def trace_graph(function: Any, specs: Any) -> Any:
    """The FuncGraph of a Python function of tensors; None where its Python raises an error in that."""
    from tensorflow.python.framework import func_graph

    try:
        return func_graph.func_graph_from_py_func("call", function, specs, {})
    except Exception:  # of the script's code, any: the call itself raises it again, or none for its own batch
        return None


def digest_graph(graph: Any, has_values: bool = True) -> bytes:
    """A digest of the ops of a FuncGraph: equal for two traces of a function that make the same ops, whatever names.

    has_values: whether constants count, too.
    """
    definition = graph.as_graph_def()
    library = {one.signature.name: one for one in definition.library.function}
    return digest_nodes(definition.node, library, has_values, gives=[one.name for one in graph.outputs])


def digest_nodes(
    nodes: Iterable[Any],
    library: Mapping[str, Any],
    has_values: bool,
    takes: Iterable[str] = (),
    gives: Iterable[str] = (),
) -> bytes:
    """`digest_graph` of messages of nodes, in their order, which call functions of `library`.

    takes, gives: the names of arguments and of results.
    """
    found = hashlib.blake2b()
    numbers = {name: -1 - number for number, name in enumerate(takes)}

    def find(name: str) -> tuple[Any, ...]:
        of, *at = name.lstrip("^").split(":")
        return name[:1] == "^", numbers.get(of), *at

    for number, node in enumerate(nodes):
        numbers[node.name] = number
        found.update(repr((node.op, list(map(find, node.input)))).encode())
        for name in sorted(node.attr):
            value = node.attr[name]
            called = [value.func.name] if value.HasField("func") else [one.name for one in value.list.func]
            for one in filter(library.__contains__, called):
                function = library[one]
                arguments = [each.name for each in function.signature.input_arg]
                results = [function.ret[each.name] for each in function.signature.output_arg]
                found.update(digest_nodes(function.node_def, library, has_values, arguments, results))
            if (
                called
                or name[0] == "_"
                or name in _UNLIKE
                or (not has_values and (node.op, name) == ("Const", "value"))
            ):
                continue
            found.update(name.encode() + value.SerializeToString(deterministic=True))
    found.update(repr(list(map(find, gives))).encode())
    return found.digest()


def open_spec(spec: Any) -> Any:
    """The specification of a batch of any number of rows, of one of some batches."""
    import tensorflow as tf

    def open_component(one: Any) -> Any:
        if isinstance(one, tf.TensorSpec) and one.shape.rank:
            return tf.TensorSpec([None, *one.shape[1:]], one.dtype)
        return one

    return tf.nest.map_structure(open_component, spec)
