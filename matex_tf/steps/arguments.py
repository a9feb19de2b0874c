"""The arguments of a call of a `tf.function` or a model: which of them have rows, and which trace the call needs.

In `step(x, y, rate)` with tensors `x` and `y` of 64 rows, `x` and `y` have the rows that ranks divide. Calls with equal
keys (`Arguments.make_key`) have the same trace, so a further call finds the plan of an earlier one by its key.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.sources import choose_rows
from matex_tf.steps import own_data, slices
from matex_tf.steps.batches import find_dealt


class Arguments:
    """The flattened arguments of a call.

    given: the positional and the keyword arguments.
    leaves: the arguments in `given`, flattened: tensors and other objects.
    rows: the number of rows of the batch: the most common first size of the tensors, if it is 2 or more; 0: no batch.
    references: for each leaf that the last key (`make_key`) identifies by its address, a function that returns the
        leaf, or None once the leaf is gone. The key is then invalid, since a new object may have the address.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.given = args, kwargs
        self.references: list[Callable[[], Any]] = []
        self.leaves = tf.nest.flatten(self.given)
        if any(isinstance(leaf, np.ndarray) for leaf in self.leaves):  # as the call would do
            self.leaves = [tf.convert_to_tensor(leaf) if _is_array(leaf) else leaf for leaf in self.leaves]
            self.given = tf.nest.pack_sequence_as(self.given, self.leaves)
        self.rows = choose_rows(map(_count_rows, self.leaves))

    def make_key(self) -> Any:
        """The key of a trace: calls with equal keys have the same trace. Sets `references`.

        It has a part for each leaf, such as the dtype and shape of a tensor, or a number itself; and the structure.
        """
        parts: list[Any] = []
        self.references = []
        for leaf in self.leaves:
            if isinstance(leaf, (np.generic, tf.Tensor)):
                parts.append((leaf.dtype, _list_sizes(leaf)))
            elif is_source(leaf):  # the types of its batches, whether only this rank has them, how ranks share them
                parts.append((type(leaf), _describe_batches(leaf), own_data.is_own(leaf), find_batch_key(leaf)))
            elif isinstance(leaf, tf.__internal__.CompositeTensor) and not isinstance(leaf, tf.Variable):
                parts.append(tf.type_spec_from_value(leaf))
            elif isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), tf.DType, tf.TypeSpec)):
                parts.append((type(leaf), leaf))
            else:  # such as a variable: a trace is made for this one, and f(v, v) differs from f(v, w)
                self.references.append(_make_reference(leaf))
                parts.append(id(leaf))
        args, kwargs = self.given
        if not kwargs and len(args) == len(self.leaves) and all(map(operator.is_, args, self.leaves)):
            return tuple(parts), len(args)  # the usual case, without nesting; the text of a structure is slow to make
        return tuple(parts), repr(tf.nest.map_structure(lambda leaf: 0, self.given))

    @property
    def has_lasting_key(self) -> bool:
        """Whether the last key identifies no object but variables by address, so that it is valid on all ranks or none.

        Ranks free other objects at different times. If a new object got the address of an old one on one rank only,
        that rank alone would find the old key.
        """
        return all(isinstance(get_leaf(), tf.Variable) for get_leaf in self.references)

    def list_tensors(self) -> list[Any]:
        """The tensors among the leaves, and tensors that Python code has attached to them, such as masks."""
        leaves = [leaf for leaf in self.leaves if isinstance(leaf, tf.Tensor)]
        return leaves + [tensor for leaf in leaves for tensor in list_attached(leaf).values()]

    def find_rows(self, inputs: Iterable[Any]) -> list[bool]:
        """Which of `inputs`, values of a trace's inputs, are tensors of the call with `rows` rows. They are sliced.

        Rows are guessed, but a wrong guess changes no result: the step only needs other collectives.
        """
        ids = {id(tensor) for tensor in self.list_tensors() if self.rows and _count_rows(tensor) == self.rows}
        return [id(tensor) in ids for tensor in inputs]

    def trace_call(self, function: Callable[..., Any]) -> Any:
        """The FuncGraph of a call of `function` (a model), with the tensors of `list_tensors` as inputs.

        Its structured outputs are a pair: the results of the function, and a list with the attached tensors of each
        tensor of the results. None if the Python code of the function raises an error.
        """
        from tensorflow.python.framework import func_graph

        def call(*tensors: Any) -> Any:
            """Call `function` with symbolic `tensors` in place of the tensors of `list_tensors`."""
            argument_count = sum(isinstance(leaf, tf.Tensor) for leaf in self.leaves)
            symbolic_arguments, symbolic_attached = iter(tensors[:argument_count]), iter(tensors[argument_count:])
            leaves = list(self.leaves)
            for index, leaf in enumerate(self.leaves):
                if isinstance(leaf, tf.Tensor):
                    leaves[index] = next(symbolic_arguments)
                    attach_tensors(leaves[index], {name: next(symbolic_attached) for name in list_attached(leaf)})
            args, kwargs = tf.nest.pack_sequence_as(self.given, leaves)
            result = function(*args, **kwargs)
            return result, list(map(list_attached, tf.nest.flatten(result, expand_composites=True)))

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.list_tensors()]
        try:
            return func_graph.func_graph_from_py_func("call", call, specs, {})
        except Exception:  # this is only a trial of the script's code: the later call raises the script's errors
            return None


def list_attached(tensor: Any) -> dict[str, Any]:
    """The tensors attached to a tensor as attributes, by name: Keras attaches masks and logits."""
    return {name: value for name, value in getattr(tensor, "__dict__", {}).items() if isinstance(value, tf.Tensor)}


def attach_tensors(tensor: Any, attached: dict[str, Any]) -> None:
    for name, value in attached.items():
        setattr(tensor, name, value)


def _make_reference(leaf: Any) -> Callable[[], Any]:
    """A function that returns `leaf`, or None once `leaf` is gone. If no weak reference is possible, `leaf` stays."""
    try:
        return weakref.ref(leaf)
    except TypeError:
        return lambda: leaf


def is_source(leaf: Any) -> bool:
    """Whether an argument gives batches to the function."""
    return isinstance(leaf, (tf.data.Iterator, tf.data.Dataset))


def find_batch_key(source: Any) -> Any:
    """A key for how ranks share the batches of `source`; None if they do not. Equal keys allow the same plan.

    source: an iterator, a dataset, or a tensor that stands for one.
    """
    handle = getattr(source, "_iterator_resource", getattr(source, "_variant_tensor", source))
    dealt = find_dealt(handle)
    if dealt is None:
        return None
    # The dealer makes the batches; dealers of equal elements have equal signatures. If the ratios of the ranks' slices
    # may change, a step belongs to the one dealer whose ratios it reads.
    return dealt.dealer.signature, dealt.dealer if slices.may_change() else None


def _describe_batches(source: Any) -> str:
    """The types and shapes of the batches. The text is made once for each source, since it is slow to make."""
    return tags.get_or_make_tag(source, "batches", lambda: repr(source.element_spec))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype != object


def _list_sizes(array: Any) -> tuple[Any, ...]:
    """The shape of an array or a tensor, as ints also with TensorFlow 1 behavior."""
    return tuple(array.shape.as_list() if hasattr(array.shape, "as_list") else array.shape)


def _count_rows(leaf: Any) -> int | None:
    """The first size of an eager tensor; None if the leaf is no tensor, or has no dimension."""
    return _list_sizes(leaf)[0] if isinstance(leaf, tf.Tensor) and leaf.shape.rank else None
