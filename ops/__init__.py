"""Collectives on tensors: TensorFlow ops over an engine in C++, which calls MPI. The public names of `ops`.

The files, in the order in which they act:

1. `library` loads the engine at the first use, and the TensorFlow ops over it. If they are not compiled yet, `build`
   compiles them, once for each TensorFlow and MPI: `compiler` finds the compiler, `cache` the folder, `trust` who may
   write to it; by `build_lock` one process builds and the others wait. `interface` has the types of the C functions.
2. `sequence`: ranks meet before each collective. `content_hash` is the hash of arrays by which ranks compare data.
3. `collectives/` creates the ops in graphs; by `order` all ranks run them in the order of creation. Gradients are
   summed inline or overlapped (`overlap`), or on a GPU. `xla` loads the kernels for functions that XLA compiles.
4. `pipeline_ops`, `iterator_ends` and `record_files` serve datasets; `records` reads what the engine has recorded.

`src/engine` is the engine: `sequence/` numbers and compares collectives; `layout/` divides gradients into transfers;
`update/` runs the transfers of an update; `sums/` sums one buffer over ranks; `store/` has the shared memory of pieces
and of `async`; `abi.cc` has the functions for Python. `src/tensorflow` and `src/xla` have the kernels of the ops.

Terms: a rendezvous is the comparison before a collective. The layout of an update lists its gradients. A transfer is
one sum over ranks: of a gradient, of a part of a large one, or of several small ones, fused. Its fragments are the
ranges of gradients in it. A residual is what compression has not sent yet of a gradient.
"""

from __future__ import annotations

from . import records
from .collectives import OP_TYPES
from .collectives.common import make_weight
from .collectives.on_tensors import allgather, allreduce, barrier, broadcast
from .collectives.reduce_gradients import reduce_gradients
from .collectives.reduce_on_device import agree_on_addresses, can_take_addresses
from .content_hash import hash_content
from .iterator_ends import let_go
from .library import get_library, load_tensorflow_ops
from .order import pass_turn
from .pipeline_ops import deal_rows, seek_seeds
from .sequence import (
    Cause,
    Kind,
    announce_exchange,
    announce_turns,
    count_completed,
    count_global_rows,
    count_updates,
    find_cause,
    get_blocked_seconds,
    get_collective_seconds,
    read_failure,
    read_waiting,
    rendezvous,
    restart_engine,
)

__all__ = [
    "OP_TYPES", "Cause", "Kind", "agree_on_addresses", "allgather", "allreduce", "announce_exchange", "announce_turns",
    "barrier", "broadcast", "can_take_addresses", "count_completed", "count_global_rows", "count_updates", "deal_rows",
    "find_cause", "get_blocked_seconds", "get_collective_seconds", "get_library", "hash_content", "let_go",
    "load_tensorflow_ops", "make_weight", "pass_turn", "read_failure", "read_waiting", "records", "reduce_gradients",
    "rendezvous", "restart_engine", "seek_seeds",
]  # fmt: skip
