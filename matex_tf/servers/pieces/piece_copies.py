"""With MATEX_ELASTIC another rank has a copy of each piece of an optimizer's slots: there is that of a lost rank.

What a step has changed is sent in it, and counts once all ranks have completed the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners
from matex_tf.steps import pieces
from matex_tf.world import membership, world

_LONGEST = 1 << 30  # bytes of a message: MPI counts them in 32 bits
_Pieces = dict[int, np.ndarray]
"""Copies of other ranks' pieces of a variable, in bytes, by the numbers that those had when the run began."""

_kept: dict[int, tuple[int, _Pieces]] = {}
"""By the numbers of variables: how many updates they had then, and the copies."""
_sent: dict[int, tuple[Any, _Pieces]] = {}
_cut_for: list[int] = []
"""The ranks for which variables are cut, by the numbers that they had when the run began."""
_under_way: list[np.ndarray] = []  # what MPI may still read and write, where a rank was lost


def find_keeper(rank: int, nodes: Sequence[int], owning: Sequence[int]) -> int:
    """The rank that has the copy of `rank`'s pieces: the next one of its node, in a circle; alone there, the next one.

    Of several it is one that owns pieces itself: others may be where memory is short.

    Args:
        nodes: of each rank the one on which it is.
        owning: the ranks that own pieces.
    """
    others = [(rank + far) % len(nodes) for far in range(1, len(nodes))]
    near = [other for other in others if nodes[other] == nodes[rank]] or others
    return next((other for other in near if other in owning), near[0])


def send_copies(variables: Iterable[Any]) -> None:
    """Within the attempt of a step: send the pieces of what it changes, and take those of others. Collective."""
    _sent.clear()
    found = [one for one in variables if one.is_apart()]
    if found and world.get_world().size > 1:
        _note_ranks()
        _sent.update({one.number: (one, copies) for one, copies in zip(found, _exchange_pieces(found))})


def keep_sent() -> None:
    """All ranks have completed the step."""
    for number, (variable, copies) in _sent.items():
        variable.updates += 1
        _kept[number] = variable.updates, copies
    _sent.clear()


def restore_lost() -> Callable[[], None]:
    """What has each rank left go on with whole variables where some were in pieces, and with all cut for these ranks.

    Collective. It changes nothing; what it gives, which does, is to be called once all ranks have come so far.

    Raises:
        LostRankError: on all of them, if both who owned a piece and who had its copy are lost.
    """
    _note_ranks()
    mine = {one.number: one for one in pieces.list_variables()}
    known = {number: (one.is_apart(), _list_copied(one)) for number, one in mine.items()}
    everyone = objects.allgather(known, "which pieces of an optimizer are left")
    wholes: dict[int, np.ndarray] = {}
    for number in sorted(set(everyone[0]).intersection(*everyone)):
        # Where a rank was lost while variables were put together they may be whole on some; pieces are there on all.
        if any(each[number][0] for each in everyone):
            wholes[number] = _put_together(mine[number], [each[number][1] for each in everyone])

    def settle() -> None:
        for number, one in mine.items():
            if number in wholes:
                one.put_whole(wholes[number])
            if one.cuts and one.of() is not None:
                one.cuts = owners.cut_variable(one.of())
        _kept.clear()
        _cut_for[:] = membership.list_origins()

    return settle


def _note_ranks() -> None:
    if not _cut_for:
        _cut_for[:] = range(max(membership.list_origins()) + 1)


def _exchange_pieces(variables: Sequence[Any]) -> list[_Pieces]:
    """Of each variable the copies of others' pieces that are this rank's to keep. Collective."""
    from mpi4py import MPI

    here, origins = world.get_world(), membership.list_origins()
    owning = owners.list_owners()
    keepers = [find_keeper(rank, here.nodes, owning) for rank in range(here.size)]
    mine = np.concatenate([_copy_piece(one) for one in variables])
    sizes = {rank: [_count_bytes(one, rank) for one in variables] for rank in range(here.size)}
    taken = {rank: np.empty(sum(sizes[rank]), np.uint8) for rank, keeper in enumerate(keepers) if keeper == here.rank}
    communicator = world.get_communicator("control")
    _under_way[:] = [mine, *taken.values()]
    with objects.start_exchange("copies of pieces of an optimizer"):
        requests = [communicator.Irecv([part, MPI.BYTE], rank) for rank, to in taken.items() for part in _split(to)]
        requests += [communicator.Isend([part, MPI.BYTE], keepers[here.rank]) for part in _split(mine)]
        MPI.Request.Waitall(requests)
    _under_way.clear()
    parts = {rank: np.split(data, np.cumsum(sizes[rank])[:-1]) for rank, data in taken.items()}
    return [{origins[rank]: of_rank[at] for rank, of_rank in parts.items()} for at in range(len(variables))]


def _split(data: np.ndarray) -> list[np.ndarray]:
    return [data[first : first + _LONGEST] for first in range(0, len(data), _LONGEST)]


def _count_bytes(variable: Any, place: int) -> int:
    """Of the piece of the rank at this place of those for which it is cut."""
    return (variable.cuts[place + 1] - variable.cuts[place]) * variable.dtype.size


def _copy_piece(variable: Any) -> np.ndarray:
    """This rank's piece, in bytes."""
    return np.array(variable.piece.numpy()).view(np.uint8)


def _list_copied(variable: Any) -> list[int]:
    """The ranks, by the numbers that they had when the run began, of whose pieces this one has a valid copy."""
    updates, copies = _kept.get(variable.number, (-1, {}))
    return list(copies) if updates == variable.updates else []


def _put_together(variable: Any, copied: Sequence[Sequence[int]]) -> np.ndarray:
    """The whole value, of what ranks have; of those before the loss, whose pieces are `copied` on each. Collective."""
    here, origins = world.get_world().rank, membership.list_origins()
    whole = np.empty(variable.shape.num_elements() * variable.dtype.size, np.uint8)
    for place, origin in enumerate(_cut_for):
        first, count = variable.cuts[place] * variable.dtype.size, _count_bytes(variable, place)
        if not count:
            continue
        has = [rank for rank, copies in enumerate(copied) if origin in copies]
        has = [origins.index(origin)] if origin in origins else has
        if not has:
            raise membership.make_loss_error(
                f"rank {origin} had a piece of the optimizer's variables, and no other has a copy of it as it is now: "
                "it was changed outside of a step, or the rank with the copy is lost, too"
            )
        data = None
        if here == has[0]:
            data = _copy_piece(variable) if origin == origins[here] else _kept[variable.number][1][origin]
        for part in _split(whole[first : first + count]):
            begin = part.ctypes.data - whole.ctypes.data - first
            mine = None if data is None else data[begin : begin + len(part)]
            part[:] = objects.broadcast(mine, "a piece of an optimizer", root=has[0])
    return whole.view(variable.dtype.as_numpy_dtype).reshape(tuple(variable.shape))
