"""Collectives on tensors: TensorFlow ops over an MPI engine, with their build and loader. The public names of `ops`."""

from __future__ import annotations

from . import records
from .collectives import OP_TYPES
from .collectives.allgather import allgather
from .collectives.allreduce import allreduce
from .collectives.barrier import barrier
from .collectives.broadcast import broadcast
from .collectives.common import make_weight
from .collectives.reduce_gradients import reduce_gradients
from .collectives.reduce_on_device import agree_on_addresses, can_take_addresses
from .content_hash import hash_content
from .handles import let_go, pass_turn, seek_seeds
from .library import get_library, load_tensorflow_ops
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
    "barrier", "broadcast", "can_take_addresses", "count_completed", "count_global_rows", "count_updates", "find_cause",
    "get_blocked_seconds", "get_collective_seconds", "get_library", "hash_content", "let_go", "load_tensorflow_ops",
    "make_weight", "pass_turn", "read_failure", "read_waiting", "records", "reduce_gradients", "rendezvous",
    "restart_engine", "seek_seeds",
]  # fmt: skip
