"""With MATEX_ELASTIC another rank has a copy of each piece of an optimizer's slots: there is that of a lost rank.

What a step has changed is sent in it, and counts once all ranks have completed the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners, sharded_slots
from matex_tf.servers.pieces.sharded_slots import Holding
from matex_tf.servers.variable_swap import find_inner
from matex_tf.world import membership, world

_LONGEST = 1 << 30  # bytes of a message: MPI counts them in 32 bits


@dataclass(frozen=True)
class _Copies:
    """Copies of other ranks' pieces of one holding, by the numbers that those had when the run began."""

    updates: int  # of the holding, before
    pieces: dict[int, np.ndarray]  # in bytes, of all slots one after another


_kept: weakref.WeakKeyDictionary[Holding, _Copies] = weakref.WeakKeyDictionary()
_sent: dict[Holding, _Copies] = {}
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


def send_copies(holdings: Sequence[Holding]) -> None:
    """Send the pieces that were changed, and take those of others. Collective."""
    _sent.clear()
    for one in holdings:
        updates, known = one.count_updates(), _kept.get(one)
        if one.is_apart() and (known is None or known.updates != updates) and world.get_world().size > 1:
            _sent[one] = _Copies(updates, _exchange_pieces(one))


def keep_sent() -> None:
    """All ranks have completed the step."""
    _kept.update(_sent)
    _sent.clear()


def restore_lost() -> Callable[[], None]:
    """What has each rank that is left go on with whole slots where some were in pieces, and all cut for these ranks.

    Collective. It changes nothing; what it gives, which does, is to be called once all ranks have come so far.

    Raises:
        CannotGoOn: on all of them, if both who owned a piece and who had its copy are lost.
    """
    mine = sharded_slots.list_holdings()
    known = {number: (one.is_apart(), _list_copied(one)) for number, one in mine.items()}
    everyone = objects.allgather(known, "which pieces of an optimizer are left")
    wholes: dict[int, list[np.ndarray]] = {}
    for number in sorted(set(everyone[0]).intersection(*everyone)):
        # Where a rank was lost while slots were put together they may be whole on some; pieces are there on all.
        if any(each[number][0] for each in everyone):
            wholes[number] = _put_together(mine[number], [each[number][1] for each in everyone])

    def settle() -> None:
        for number, one in mine.items():
            one.cut_anew(wholes.get(number, []))
        _kept.clear()

    return settle


def _exchange_pieces(one: Holding) -> dict[int, np.ndarray]:
    """The copies of others' pieces that are this rank's to keep. Collective."""
    from mpi4py import MPI

    here, origins = world.get_world(), membership.list_origins()
    owning = owners.list_owners()
    keepers = [find_keeper(rank, here.nodes, owning) for rank in range(here.size)]
    mine = _copy_pieces(one)
    taken = {rank: _make_bytes(one, rank) for rank, keeper in enumerate(keepers) if keeper == here.rank}
    communicator = world.get_communicator("control")
    _under_way[:] = [mine, *taken.values()]
    with objects.start_exchange("copies of pieces of an optimizer"):
        requests = [communicator.Irecv([part, MPI.BYTE], rank) for rank, to in taken.items() for part in _split(to)]
        requests += [communicator.Isend([part, MPI.BYTE], keepers[here.rank]) for part in _split(mine)]
        MPI.Request.Waitall(requests)
    _under_way.clear()
    return {origins[rank]: piece for rank, piece in taken.items()}


def _split(data: np.ndarray) -> list[np.ndarray]:
    return [data[first : first + _LONGEST] for first in range(0, len(data), _LONGEST)]


def _find_type(one: Holding) -> np.dtype:
    return np.dtype(find_inner(one.parts[0].variable).dtype.as_numpy_dtype)


def _count_entries(one: Holding, place: int) -> int:
    """The entries of all pieces of slots that the rank at this place of `one.ranks` owns."""
    owned = one.bounds[place]
    return sum(len(part.slots) * (owned[part.number][1] - owned[part.number][0]) for part in one.parts)


def _make_bytes(one: Holding, place: int) -> np.ndarray:
    """Memory for these entries."""
    return np.empty(_count_entries(one, place) * _find_type(one).itemsize, np.uint8)


def _copy_pieces(one: Holding) -> np.ndarray:
    """This rank's pieces, in bytes, of all slots one after another."""
    data, first = _make_bytes(one, one.ranks.index(membership.list_origins()[world.get_world().rank])), 0
    for _, piece in (pair for part in one.parts for pair in part.slots):
        values = np.asarray(piece.numpy()).view(np.uint8)
        data[first : first + len(values)] = values
        first += len(values)
    return data


def _list_copied(one: Holding) -> list[int]:
    """The ranks, by the numbers that they had when the run began, of whose pieces this one has a valid copy."""
    copies = _kept.get(one)
    return [] if copies is None or copies.updates != one.count_updates() else list(copies.pieces)


def _put_together(one: Holding, copied: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The whole slots, of what ranks have; of those before the loss, whose pieces are `copied` on each. Collective."""
    here, origins, dtype = world.get_world().rank, membership.list_origins(), _find_type(one)
    slots = [(part.number, find_inner(slot)) for part in one.parts for slot, _ in part.slots]
    wholes = [np.empty(slot.shape.num_elements(), dtype) for _, slot in slots]
    for place, origin in enumerate(one.ranks):
        if not _count_entries(one, place):
            continue
        has = [rank for rank, copies in enumerate(copied) if origin in copies]
        has = [origins.index(origin)] if origin in origins else has
        if not has:
            raise membership.make_loss_error(
                f"rank {origin} had a piece of the optimizer's variables, and no other has a copy of it as it is now: "
                "it was updated outside of `fit`, or the rank with the copy is lost, too"
            )
        if here != has[0]:
            data = _make_bytes(one, place)
        else:
            data = _copy_pieces(one) if origin == origins[here] else _kept[one].pieces[origin]
        for part in _split(data):
            part[:] = objects.broadcast(part if here == has[0] else None, "a piece of an optimizer", root=has[0])
        values = data.view(dtype)
        for (number, _), whole in zip(slots, wholes):
            first, last = one.bounds[place][number]
            whole[first:last], values = values[: last - first], values[last - first :]
    return [whole.reshape(tuple(slot.shape)) for whole, (_, slot) in zip(wholes, slots)]
