"""The trace of a step for any number of rows, as the script wrote it."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

_state = threading.local()


def is_opening() -> bool:
    """Whether batches that are taken in the trace that is being made have any number of rows."""
    return getattr(_state, "opens", False)


def trace_open(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ConcreteFunction of a `tf.function`, in whose trace batches have any number of rows.

    None where the script's Python raises an error in that, as it may where it asks for the number of rows. Of a
    function that XLA compiles it is that of one that calls it.
    """
    import tensorflow as tf

    _state.opens = True
    try:
        own = _trace(function, args, kwargs)
        if own is None or not function._jit_compile:
            return own
        return _trace(tf.function(lambda *given, **named: function(*given, **named), autograph=False), args, kwargs)
    finally:
        _state.opens = False


def _trace(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A trace that fails would leave a function in a state in which it can make no variables."""
    names = ("_variable_creation_config", "_no_variable_creation_config", "_created_variables")
    before = {name: getattr(function, name) for name in names}
    try:
        return function.get_concrete_function(*args, **kwargs)
    except Exception:  # of the script's code, any; the call itself raises it again, or none for its own batch
        for name, value in before.items():
            setattr(function, name, value)
        return None


def trace_graph(function: Any, specs: Any) -> Any:
    """The FuncGraph of a Python function of tensors; None where its Python raises an error in that."""
    from tensorflow.python.framework import func_graph

    try:
        return func_graph.func_graph_from_py_func("call", function, specs, {})
    except Exception:  # of the script's code, any: the call itself raises it again, or none for its own batch
        return None


def digest_graph(graph: Any) -> bytes:
    """A digest of the ops of a FuncGraph: equal for two traces of a function that make the same ops.

    Names of functions that ops call, and of gradient functions, are others in each trace.
    """
    definition = graph.as_graph_def()
    library = {one.signature.name: one for one in definition.library.function}

    def digest(nodes: Any) -> bytes:
        found = hashlib.blake2b()
        for node in nodes:
            found.update(repr((node.name, node.op, list(node.input), node.device)).encode())
            for name in sorted(node.attr):
                value = node.attr[name]
                called = [value.func.name] if value.HasField("func") else [one.name for one in value.list.func]
                if called:
                    for one in called:
                        found.update(digest(library[one].node_def) if one in library else one.encode())
                elif not name.startswith("_"):
                    found.update(name.encode() + value.SerializeToString(deterministic=True))
        return found.digest()

    return digest(definition.node)


def open_spec(spec: Any) -> Any:
    """The specification of a batch of any number of rows, of one of some batches."""
    import tensorflow as tf

    def open_component(one: Any) -> Any:
        if isinstance(one, tf.TensorSpec) and one.shape.rank:
            return tf.TensorSpec([None, *one.shape[1:]], one.dtype)
        return one

    return tf.nest.map_structure(open_component, spec)
