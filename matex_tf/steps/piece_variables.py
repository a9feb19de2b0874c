"""Variables that ranks hold in pieces: the moments of an optimizer, with MATEX_STRATEGY=sharded.

`servers.pieces` creates them, and steps use them by `pieces`. Import this module after TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

from matex_tf import errors, ops
from matex_tf.steps import pieces
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import world

_numbers = itertools.count()


class PieceVariable(BaseResourceVariable):
    """A variable of TensorFlow in one of two forms: every rank holds it whole, or each rank holds a piece of it.

    The resource of the variable itself holds the whole value, and does not exist while the variable is in pieces. So
    code that uses the handle directly gets an error, and never a piece. Shared steps use `piece`. Eager code that reads
    the value gets the whole value, which is a collective while the variable is in pieces.

    The forms of a variable over time: it begins in pieces, or whole as long as `cuts` is empty. `make_whole` puts the
    pieces together for code that every rank runs by itself; before the next shared step, `split` keeps this rank's
    piece again. A variable that is refused stays whole for good.

    number: the index among all such variables, in the order of their creation, which is the same on every rank.
    cuts: the first entry of each rank's piece, and the end of the last piece. A loss of ranks changes them. Empty at
        first if ranks must compare initial values, or choose the number of owners; a plan then asks for them
        (`events.cuts_wanted`).
    of: a weak reference to the weight whose entries match the entries of this variable.
    owner: names the optimizer in messages.
    piece: a variable that holds this rank's piece, flattened.
    updates: the number of changes of the value so far, by which copies of pieces are known to be outdated
        (`servers.pieces.piece_copies`). Changes by steps are counted only with `--elastic`.
    is_refused: the variable stays whole, since an op of a step takes it whole, since trials of steps found that steps
        are faster with whole variables, or since one rank may read it by itself (`pieces.keep_all_whole`).
    is_settled: trials of steps (`adapt.step_trials`) have decided the form.
    """

    def __init__(self, *, value: Any, cuts: tuple[int, ...], of: Any, owner: str, name: str, **options: Any):
        """value: a tensor, the initial value. Use keywords: TensorFlow would treat a call with positional arguments as
        one of its own variables.
        """
        self.number, self.cuts, self.of, self.owner = next(_numbers), cuts, weakref.ref(of), owner
        self.is_refused, self.is_settled, self.updates = False, False, 0
        with framework_ops.name_scope(name, "Variable", skip_on_eager=False) as scope:
            handle_name = framework_ops.name_from_scope_name(scope)
        shared_name = f"{handle_name}, of which ranks have pieces, {self.number}"
        handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=shared_name)
        handle._handle_data = handle_data_util.create_handle_data(value.shape, value.dtype)
        super().__init__(
            shape=value.shape, dtype=value.dtype, handle=handle, handle_name=handle_name, in_graph_mode=False,
            unique_id=f"{handle_name}_{self.number}_in_pieces", **options,
        )  # fmt: skip
        weakref.finalize(self, _remove_resource, handle).atexit = False
        self.piece = ResourceVariable(tf.zeros([0], value.dtype), trainable=False, shape=[None], name=handle_name)
        self._put(value)
        pieces.note_variable(self)

    def is_in_pieces(self) -> bool:
        """Whether it is in pieces: its own resource does not exist."""
        return not tf.raw_ops.VarIsInitializedOp(resource=self.handle).numpy()

    def split(self) -> None:
        """Hold only this rank's piece from now on, unless the variable is refused or in pieces already."""
        if not self.is_refused and not self.is_in_pieces():
            self._put(_read(self))

    def make_whole(self) -> None:
        """Hold the whole value from now on. Collective, if the variable is in pieces."""
        if self.is_in_pieces():
            self.put_whole(self._gather())

    def put_whole(self, value: Any) -> None:
        """Hold a whole value, and no piece."""
        self.updates += 1
        _assign(self, value)
        _assign(self.piece, tf.zeros([0], self.dtype))

    def _put(self, value: Any) -> None:
        """Hold this rank's piece of a whole value; the whole value as long as the cuts are unknown."""
        if not self.cuts:
            self.put_whole(value)
            return
        self.updates += 1
        first, last = self.cuts[world.get_world().rank :][:2]  # this rank's cut and the next
        # A slice shares the memory of the whole value, which would stay allocated.
        _assign(self.piece, tf.raw_ops.DeepCopy(x=tf.reshape(value, [-1])[first:last]))
        tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)

    def _gather(self) -> Any:
        """The whole value of a variable in pieces. Collective."""
        if not is_main_thread():
            raise errors.UnsupportedError(
                f"a thread of the script reads '{self.name}', a variable of {self.owner} of which each rank holds a "
                "piece; the ranks can put it together in their main threads only: read it there, or set "
                "MATEX_STRATEGY=allreduce"
            )
        return tf.reshape(ops.allgather(_read(self.piece), self.name), self.shape)

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if tf.executing_eagerly() and self.is_in_pieces():
            return self._gather()
        return super()._read_variable_op(no_copy)

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        if not tf.executing_eagerly() or not self.is_in_pieces():
            return super().assign(value, use_locking, name, read_value)
        value = tf.convert_to_tensor(value, self.dtype)
        if not self.shape.is_compatible_with(value.shape):
            raise ValueError(f"cannot assign a value of the shape {value.shape} to '{self.name}' of {self.shape}")
        self._put(value)
        return self

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        return self.assign(next(iter(restored_tensors.values())))

    def is_initialized(self, name: Any = None) -> Any:
        return tf.constant(True)

    def __repr__(self) -> str:
        """Without the value, which one rank alone cannot read."""
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}, of which ranks have pieces>"


def _read(variable: Any) -> Any:
    """The value. Unlike `read_value`, the read is not recorded as a use of the variable by the current function."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _assign(variable: Any, value: Any) -> None:
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _wrap_method(name: str) -> Any:
    """The method of this name, which uses entries of the value: in eager code, it first makes the variable whole."""
    original = getattr(BaseResourceVariable, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            self.make_whole()
        return original(self, *args, **kwargs)

    return method


for _name in (
    "assign_add assign_sub sparse_read gather_nd count_up_to scatter_sub scatter_add scatter_max scatter_min "
    "scatter_mul scatter_div scatter_update batch_scatter_update scatter_nd_sub scatter_nd_add scatter_nd_update "
    "scatter_nd_max scatter_nd_min"
).split():
    setattr(PieceVariable, _name, _wrap_method(_name))


def _remove_resource(handle: Any) -> None:
    with context.eager_mode():  # Python may collect a variable while it traces a function
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
