"""Which ranks own a piece of the weights: all of them, S of them, or as many as the model of `costs` finds fastest."""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Sequence
from typing import Any

from matex_tf import errors, memory, settings, tags
from matex_tf.costs.collectives import Link
from matex_tf.costs.pieces import Hosts
from matex_tf.runtime import notes, objects
from matex_tf.servers.pieces import partition
from matex_tf.steps import pieces
from matex_tf.steps.variables import find_tf_variable
from matex_tf.world import world

_known: list[Hosts] = []
_chosen: list[int] = []  # how many, once a step was planned with pieces
_balances: dict[Any, partition.Balance] = {}
_CUTS = "cuts"
_why_whole = ""
"""Why, with `auto`, variables are no longer in pieces."""


def is_chosen() -> bool:
    """Whether updates are to be sharded where they can be."""
    # A phantom, whose other ranks are not there, could not get their pieces.
    name = settings.get_strategy_name(settings.get_settings().strategy)
    is_asked = name in ("sharded", "servers") or (is_left_open() and not find_obstacle())
    return is_asked and world.is_active() and not world.get_world().is_phantom


def is_left_open() -> bool:
    """Whether ranks choose between `allreduce` and `sharded` by the time that their steps take."""
    return settings.get_settings().strategy == "auto"


def find_obstacle() -> str:
    """Why `auto` is `allreduce` from the start; empty: nothing but a step can say that."""
    chosen = settings.get_settings()
    if chosen.elastic:
        return "with MATEX_ELASTIC each step would send copies of the pieces"
    if chosen.adapt == "ranks":
        return "with MATEX_ADAPT=ranks the number of ranks and the strategy change together"
    if chosen.compression != settings.NO_COMPRESSION or chosen.check_numerics:
        return "compressed or checked gradients are summed whole"
    return pieces.ASKED if world.script_knows_ranks else _why_whole


def keep_whole(why: str) -> None:
    """With `auto`: from here on every rank has an optimizer's variables whole. To be called by all ranks together.

    In a thread of the script it does nothing: one starts only after the main thread has called this.
    """
    global _why_whole
    if not _why_whole and threading.current_thread() is threading.main_thread():
        _why_whole = why
        pieces.keep_whole()
        if settings.get_settings().explain:
            notes.print_note(f"MATEX_STRATEGY=auto: allreduce: {why}")


def are_to_be_counted() -> bool:
    """Whether their number is left to the model."""
    return settings.get_settings().strategy == "servers:auto" and is_chosen()


def are_compared() -> bool:
    """Whether ranks may go on with another strategy that has the same result: where the script's user chose none."""
    chosen = settings.get_settings()
    is_free = settings.PREFIX + "STRATEGY" not in os.environ or are_to_be_counted()
    return chosen.adapt == "ranks" and bool(chosen.proof) and is_free and world.get_world().size > 1


def compare_strategies(weights: float, slots: float) -> tuple[str, float]:
    """Of allreduce and servers:auto the one that is not in force, and by how many seconds a step is shorter with it.

    Args:
        weights, slots: the bytes of those that ranks could have in pieces.
    """
    if not _known or not weights:
        return "", 0.0
    hosts = _known[0]
    fits = partition.list_fitting_counts(hosts, slots)
    if not fits:
        return "", 0.0
    pieces = min(hosts.estimate_step(count, weights, slots) for count in fits)
    gain = hosts.estimate_whole_step(weights, slots) - pieces
    return ("allreduce", -gain) if are_to_be_counted() else ("servers:auto", gain)


def note_hosts(link: tuple[float, float] | None) -> None:
    """Before anything is trained: note what is known of the hosts, the same on all ranks. Collective.

    Args:
        link: seconds to start a transfer between these hosts, and for each byte, if measured; those of rank 0 count.
    """
    nodes = world.get_world().nodes
    everyone = objects.allgather((memory.measure_free(), link), "what hosts have for servers:auto")
    free = {node: min(left for (left, _), one in zip(everyone, nodes) if one == node) / memory.MARGIN for node in nodes}
    network = everyone[0][1]
    _known[:] = [Hosts(nodes, free, Link(*network) if network else None)]


def list_owners() -> list[int]:
    """The ranks that own a piece of variables.

    Raises:
        SetupError: there are fewer ranks than owners were asked for, or none is left to train.
    """
    here, strategy = world.get_world(), settings.get_settings().strategy
    if here.is_phantom:
        return [0]  # whatever is traced for the pieces is the same for any number of them
    if are_to_be_counted():
        return partition.choose_owners(here.nodes, _chosen[0])
    if here.servers:
        if here.trainers < 1:
            raise errors.SetupError(
                f"MATEX_STRATEGY={strategy} asks for {here.servers} ranks that only serve, and of {here.size} none is "
                f"left to train. Start {here.servers + 1} ranks or more, or set servers:{here.size}, with which each "
                "owner of weights trains, too."
            )
        return list(range(here.trainers, here.size))
    told = settings.get_strategy_number(strategy, here.size)
    if told > here.size and not here.has_lost:
        raise errors.SetupError(
            f"MATEX_STRATEGY={strategy} asks for {told} owners of the weights, and there are {here.size} ranks. Each "
            f"owner is a rank that trains, too: set one of servers:1 to servers:{here.size}, or sharded, with which "
            "each rank is one."
        )
    return partition.choose_owners(here.nodes, told)


def cut_variable(variable: Any) -> tuple[int, ...]:
    """Where in the entries of a weight the piece of each rank begins, and where that of the last one ends."""
    owning = list_owners()
    key = _CUTS, tuple(owning), world.get_world().size

    def cut() -> tuple[int, ...]:
        balance = _balances.setdefault((key, variable.dtype), partition.Balance(len(owning), variable.dtype.size))
        found = balance.cut(variable.shape.num_elements())
        return tuple(found[bisect.bisect_left(owning, rank)] for rank in range(world.get_world().size + 1))

    return tags.get_or_make_tag(variable, str(key), cut)


def choose_owners(variables: Sequence[Any], slots: Sequence[Any]) -> None:
    """Of a number of owners that is left to the model, choose it for these variables and their slots, and say why."""
    if are_to_be_counted() and not _chosen:
        count, why = choose_count(_known[0], measure_bytes(variables), measure_bytes(slots))
        _chosen.append(count)
        notes.print_note(f"MATEX_STRATEGY={settings.get_settings().strategy}: {why}")


def say_owners() -> None:
    """Say which ranks own a piece, where not all do."""
    if is_chosen() and not are_to_be_counted() and len(list_owners()) < world.get_world().size:
        here, owning = world.get_world(), list_owners()
        text = f"MATEX_STRATEGY={settings.get_settings().strategy}: the optimizer's variables are on rank "
        if here.servers:
            which = ", ".join(f"{rank} ({here.hosts[rank]})" for rank in owning)
            only = "which only serves" if len(owning) == 1 else "which only serve"
            text += f"{which}, {only}: {here.trainers} of {here.size} ranks train"
        else:
            text += ", ".join(map(str, owning))
        notes.print_note(text)


def choose_count(hosts: Hosts, weights: float, slots: float) -> tuple[int, str]:
    """How many owners, of weights and slots of so many bytes, and the reason in a sentence.

    Of those numbers with which memory holds the slots, the one with the shortest step; of several, the largest.
    """
    ranks = len(hosts.nodes)
    fits = partition.list_fitting_counts(hosts, slots)
    best = min(fits or [ranks], key=lambda count: (hosts.estimate_step(count, weights, slots), -count))
    which = ", ".join(map(str, partition.choose_owners(hosts.nodes, best)))
    where = f"each of the {ranks} ranks" if best == ranks else f"rank {which} of {ranks}"
    took = {count: f"{1e3 * hosts.estimate_step(count, weights, slots):.1f} ms" for count in (best, 1, ranks)}
    text = f"S = {best}: the optimizer's {settings.format_bytes(slots)} are in pieces on {where}. To sum, update and "
    text += f"publish {settings.format_bytes(weights)} of weights takes {took.pop(best)}"
    for count, seconds in took.items():
        why = "" if count in fits else ", but memory does not hold it"
        text += f"; with S = {count} it takes {seconds}{why}"
    if not fits:
        text += ". Memory holds the pieces with no S, and with this one they are smallest"
    return best, f"{text}. This is estimated: {hosts.describe_assumptions()}"


def measure_bytes(variables: Sequence[Any]) -> int:
    """The bytes of variables that are whole."""
    inner = [find_tf_variable(one) for one in variables]
    return sum(one.shape.num_elements() * one.dtype.size for one in inner)
