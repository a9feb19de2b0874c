"""Copies of pieces on other ranks, so that the pieces of a lost rank survive in elastic runs (MATEX_ELASTIC).

With the strategies `sharded` and `servers`, each rank has and updates only its piece of an optimizer's variable. In
each step it sends its updated pieces to another rank, their keeper (`send_copies`). The copies become valid once all
ranks have completed the step (`keep_sent`). After a loss, `restore_lost` assembles complete variables from pieces and
copies, and cuts them for the remaining ranks. `slots` and `resilience.elastic` call these functions.

Ranks are renumbered after a loss. An origin is the number of a rank when the run began.

A variable here is a `steps.piece_variables.PieceVariable`: `number` names it on all ranks; `cuts` are the entries at
which the ranks' pieces begin, and last the number of entries; `of()` is the weight with the same entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners
from matex_tf.steps import pieces
from matex_tf.world import membership, world

_MAX_MESSAGE_BYTES = 1 << 30  # MPI counts bytes in 32 bits
_Copies = dict[int, np.ndarray]  # for one variable: copies of other ranks' pieces, as bytes, by the owner's origin


class _Kept(NamedTuple):
    """The copies for one variable, and its `updates` when they were made. The variable's `updates` increase with each
    step, and also when it is assigned or changes its form: then the copies are outdated.
    """

    updates: int
    copies: _Copies


class _Known(NamedTuple):
    """What a rank knows of a variable after a loss."""

    is_in_pieces: bool
    origins: list[int]  # of the ranks for which it keeps valid copies
    has_weight: bool  # its weight, `of()`, still exists


_kept: dict[int, _Kept] = {}  # the valid copies, by the number of the variable
_sent: dict[int, tuple[Any, _Copies]] = {}
"""For the number of a variable: the variable, and its copies from a step that some rank may not have completed."""
_cut_for: list[int] = []
"""The origins of the ranks for which variables are cut, in the order of the pieces. Empty before the first loss: all
ranks of the run, in their order.
"""
_buffers: list[np.ndarray] = []
"""Buffers of an exchange. If a rank is lost in the exchange they stay here, as MPI may still read and write them."""


def find_keeper(rank: int, nodes: Sequence[int], owner_ranks: Sequence[int]) -> int:
    """The rank that has the copies of `rank`'s pieces: the next one, in a circle. Ranks on the same node come first,
    because copies to them do not cross the network; and among them ranks that own pieces, as others may lack memory.

    nodes: the node of each rank.
    owner_ranks: the ranks that own pieces.
    """
    other_ranks = [(rank + distance) % len(nodes) for distance in range(1, len(nodes))]
    candidates = [other_rank for other_rank in other_ranks if nodes[other_rank] == nodes[rank]] or other_ranks
    return next((other_rank for other_rank in candidates if other_rank in owner_ranks), candidates[0])


def send_copies(variables: Iterable[Any]) -> None:
    """After a step has updated `variables`: send this rank's pieces, and receive the pieces to keep. Collective."""
    _sent.clear()
    variables_in_pieces = [variable for variable in variables if variable.is_in_pieces()]
    if variables_in_pieces and world.get_world().size > 1:
        for variable, copies in zip(variables_in_pieces, _exchange_pieces(variables_in_pieces)):
            _sent[variable.number] = variable, copies


def keep_sent() -> None:
    """Called once all ranks have completed the step: the copies of `send_copies` are valid."""
    for number, (variable, copies) in _sent.items():
        variable.updates += 1
        _kept[number] = _Kept(variable.updates, copies)
    _sent.clear()


def restore_lost() -> Callable[[], None]:
    """After a loss: assemble the complete values of all variables in pieces. Collective.

    Returns a function that assigns these values, and cuts variables for the remaining ranks. Call this function once
    all ranks have returned from `restore_lost`. Until then no variable changes, because another rank may be lost, and
    `restore_lost` is then called again.

    Raises LostRankError on all ranks if both the owner of a piece and its keeper are lost.
    """
    variables = {variable.number: variable for variable in pieces.list_variables()}
    weights = {number: variable.of() for number, variable in variables.items()}  # these references keep them
    knowledge = {
        number: _Known(variable.is_in_pieces(), _list_copied_origins(variable), weights[number] is not None)
        for number, variable in variables.items()
    }
    knowledge_of_ranks = objects.allgather(knowledge, "which pieces of an optimizer are left")
    whole_values: dict[int, np.ndarray] = {}
    # Variables that all remaining ranks still have. Python may have collected others on some ranks only.
    common_numbers = sorted(set(knowledge_of_ranks[0]).intersection(*knowledge_of_ranks))
    for number in common_numbers:
        known_by_ranks = [rank_knowledge[number] for rank_knowledge in knowledge_of_ranks]
        are_in_pieces = [known_variable.is_in_pieces for known_variable in known_by_ranks]
        if all(are_in_pieces):
            whole_values[number] = _assemble(
                variables[number], [known_variable.origins for known_variable in known_by_ranks]
            )
        elif any(are_in_pieces):  # a rank was lost while the form changed: a rank that has it whole sends it
            whole_values[number] = _send_whole(variables[number], are_in_pieces.index(False))

    def assign_values() -> None:
        for number in common_numbers:
            variable = variables[number]
            if number in whole_values:
                variable.put_whole(whole_values[number])
            # The cuts balance over all variables cut before. So ranks cut only variables whose weight exists on all
            # ranks: otherwise the cuts of later ones would differ between ranks. The others keep their old cuts.
            if variable.cuts and all(rank_knowledge[number].has_weight for rank_knowledge in knowledge_of_ranks):
                variable.cuts = owners.cut_variable(weights[number])
        # Variables that another rank has collected: no script uses them. They still have cuts for the lost ranks, so a
        # later `restore_lost` must not find them.
        for number in variables.keys() - set(common_numbers):
            pieces.forget_variable(number)
        _kept.clear()
        _cut_for[:] = membership.list_origins()

    return assign_values


def _exchange_pieces(variables: Sequence[Any]) -> list[_Copies]:
    """Send this rank's pieces to its keeper. Returns the copies that this rank keeps, for each variable. Collective."""
    from mpi4py import MPI

    me, origins = world.get_world(), membership.list_origins()
    owner_ranks = owners.list_owners()
    keepers = [find_keeper(rank, me.nodes, owner_ranks) for rank in range(me.size)]
    own_pieces = np.concatenate([_copy_piece(variable) for variable in variables])
    piece_sizes = {rank: [_count_bytes(variable, rank) for variable in variables] for rank in range(me.size)}
    buffers_by_rank = {
        rank: np.empty(sum(piece_sizes[rank]), np.uint8) for rank, keeper in enumerate(keepers) if keeper == me.rank
    }
    communicator = world.get_communicator("control")
    _buffers[:] = [own_pieces, *buffers_by_rank.values()]
    with objects.start_exchange("copies of pieces of an optimizer"):
        requests = [
            communicator.Irecv([part, MPI.BYTE], rank)
            for rank, buffer in buffers_by_rank.items()
            for part in _split(buffer)
        ]
        requests += [communicator.Isend([part, MPI.BYTE], keepers[me.rank]) for part in _split(own_pieces)]
        MPI.Request.Waitall(requests)
    _buffers.clear()
    copies = {rank: np.split(buffer, np.cumsum(piece_sizes[rank])[:-1]) for rank, buffer in buffers_by_rank.items()}
    return [
        {origins[rank]: rank_copies[index] for rank, rank_copies in copies.items()} for index in range(len(variables))
    ]


def _split(data: np.ndarray) -> list[np.ndarray]:
    """Views of `data` that are short enough for a message."""
    return [data[start : start + _MAX_MESSAGE_BYTES] for start in range(0, len(data), _MAX_MESSAGE_BYTES)]


def _count_bytes(variable: Any, index: int) -> int:
    """The bytes of piece `index` of a variable."""
    return (variable.cuts[index + 1] - variable.cuts[index]) * variable.dtype.size


def _copy_piece(variable: Any) -> np.ndarray:
    """This rank's piece, as bytes."""
    return np.array(variable.piece.numpy()).view(np.uint8)


def _list_copied_origins(variable: Any) -> list[int]:
    """The origins of the ranks for which this rank keeps valid copies; none if the copies are outdated (`_Kept`)."""
    kept_entry = _kept.get(variable.number)
    return list(kept_entry.copies) if kept_entry is not None and kept_entry.updates == variable.updates else []


def _assemble(variable: Any, copied_origins: Sequence[Sequence[int]]) -> np.ndarray:
    """The complete value of a variable, from the pieces and copies of all remaining ranks. Collective.

    `copied_origins`: `_list_copied_origins` of each rank.
    """
    own_rank, origins = world.get_world().rank, membership.list_origins()
    value_bytes = np.empty(variable.shape.num_elements() * variable.dtype.size, np.uint8)
    # Piece `index` belongs to the rank with this origin.
    for index, origin in enumerate(_cut_for or range(len(variable.cuts) - 1)):
        start, size = variable.cuts[index] * variable.dtype.size, _count_bytes(variable, index)
        if not size:
            continue
        if origin in origins:  # the owner is still here
            source_ranks = [origins.index(origin)]
        else:
            source_ranks = [rank for rank, rank_origins in enumerate(copied_origins) if origin in rank_origins]
        if not source_ranks:
            raise membership.make_loss_error(
                f"rank {origin} had a piece of the optimizer's variables, and no other has a copy of it as it is now: "
                "no step ended since it was created or changed outside of a step, or the rank with the copy is lost, "
                "too"
            )
        piece = None
        if own_rank == source_ranks[0]:
            piece = _copy_piece(variable) if origin == origins[own_rank] else _kept[variable.number].copies[origin]
        _broadcast(piece, value_bytes[start : start + size], source_ranks[0])
    return value_bytes.view(variable.dtype.as_numpy_dtype).reshape(tuple(variable.shape))


def _send_whole(variable: Any, root: int) -> np.ndarray:
    """The complete value of a variable, which rank `root` has. Collective."""
    value = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
    value_bytes = value.reshape(-1).view(np.uint8)
    is_root = world.get_world().rank == root
    if is_root:
        value[...] = variable.numpy()
    _broadcast(value_bytes if is_root else None, value_bytes, root)
    return value


def _broadcast(data: np.ndarray | None, target: np.ndarray, root: int) -> None:
    """Copy `data` of rank `root`, None on other ranks, to `target` of every rank, both bytes. Collective."""
    for start in range(0, len(target), _MAX_MESSAGE_BYTES):
        part = None if data is None else data[start : start + _MAX_MESSAGE_BYTES]
        target[start : start + _MAX_MESSAGE_BYTES] = objects.broadcast(part, "a piece of an optimizer", root=root)
