"""Shrinks the world to the survivors after a loss in an elastic run, by the functions of MPI that report lost ranks.

`resilience.elastic` calls them in this order: a rank whose collective has failed calls `revoke_communicators`, which
ends the waits of the others; all ranks call `agree_on_success`; without success, they call `shrink_world`.
"""

from __future__ import annotations

import contextlib

from matex_tf.lazy import MPI
from matex_tf.world import world


def revoke_communicators() -> None:
    """Revoke the communicators: every rank in a collective, now or later, gets an error."""
    for communicator in world.get_world().communicators.values():
        communicator.Revoke()


def agree_on_success(is_done: bool, condition: bool) -> tuple[bool, bool]:
    """Whether every rank is done and none was lost, and whether `condition` is true on every rank. Collective.

    Every rank gets the same two answers, even if a rank is lost meanwhile.
    """
    try:
        # Agree computes the bitwise AND over the ranks. Bit 0: `is_done`; bit 1: `condition`.
        agreed_bits = world.get_world().life.Agree(int(is_done) | int(condition) << 1)
        return bool(agreed_bits & 1), bool(agreed_bits & 2)
    except MPI.Exception:
        return False, False


def list_lost() -> list[int]:
    """The ranks that MPI knows to be lost, by their numbers in the world before the loss. Not collective."""
    me = world.get_world()
    with contextlib.suppress(MPI.Exception):  # the error of a lost rank
        me.life.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)  # MPI detects a loss only during a call
    lost_group = me.life.Get_failed()
    lost_ranks = MPI.Group.Translate_ranks(lost_group, list(range(lost_group.size)), me.life.group)
    lost_group.Free()
    return list(lost_ranks)


def shrink_world() -> list[int]:
    """Shrink the world to the survivors. Returns their previous numbers, indexed by their new numbers.

    Collective among the survivors.
    """
    me = world.get_world()
    communicator = me.life
    while True:  # until all survivors have made the new world, and no further rank was lost meanwhile
        communicator = communicator.Shrink()
        communicator.Set_errhandler(MPI.ERRORS_RETURN)  # errors raise exceptions, and do not end the process
        new_world = None
        try:
            new_world = world.make_world(communicator, communicator)
        except MPI.Exception:
            communicator.Revoke()  # ranks that still wait in `make_world` get an error
        with contextlib.suppress(MPI.Exception):  # another rank was lost meanwhile
            if communicator.Agree(int(new_world is not None)) == 1:
                break
    previous_ranks = MPI.Group.Translate_ranks(communicator.group, list(range(communicator.size)), me.life.group)
    vars(me).update(vars(new_world), has_lost=True)
    return list(previous_ranks)
