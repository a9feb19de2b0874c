"""Chooses the ranks that own pieces of an optimizer's variables, and cuts variables for them.

The owner of a piece, a range of a variable's elements, is the rank that updates it. With MATEX_STRATEGY `sharded` all
ranks own pieces, with `servers:S` S ranks, with `servers:auto` the number of ranks that the cost model finds fastest.
With `auto`, `adapt.step_trials` chooses between pieces and whole variables by measured times; this module decides
whether there is a choice. `slots` creates the variables.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from typing import Any

from matex_tf import errors, memory, settings, tags
from matex_tf.costs.collectives import fit_link
from matex_tf.costs.pieces import Hosts
from matex_tf.runtime import notes, objects
from matex_tf.servers.pieces import partition
from matex_tf.steps import pieces
from matex_tf.steps.variables import find_tf_variable
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import script_knowledge, world

_known_hosts: list[Hosts] = []  # one entry, after `note_hosts`
_chosen_count: list[int] = []  # one entry after the cost model has chosen: the number of owners
_balances: dict[Any, partition.Balance] = {}  # by owners and dtype: what the owners have of the variables cut so far
_CUTS = "cuts"  # the results of `cut_variable` are tags of the variables (`tags`), under this name
_why_whole = ""  # with `auto`: why variables are no longer held in pieces; "" if they may be


def is_chosen() -> bool:
    """Whether updates are sharded if possible."""
    # A phantom rank could not get the pieces of ranks that do not exist.
    strategy_name = settings.get_strategy_name(settings.get_settings().strategy)
    is_requested = strategy_name in ("sharded", "servers") or (is_left_open() and not find_obstacle())
    return is_requested and world.is_active() and not world.get_world().is_phantom


def is_left_open() -> bool:
    """Whether ranks choose between `allreduce` and `sharded` by the measured time of their steps."""
    return settings.get_settings().strategy == "auto"


def find_obstacle() -> str:
    """Why `auto` means `allreduce` from the start; "" if only the steps can decide."""
    user_settings = settings.get_settings()
    if user_settings.elastic:
        return "with MATEX_ELASTIC each step would send copies of the pieces"
    if user_settings.adapt == "ranks":
        return "with MATEX_ADAPT=ranks the number of ranks and the strategy change together"
    if user_settings.compression != settings.NO_COMPRESSION or user_settings.check_numerics:
        return "compressed or checked gradients are summed whole"
    return pieces.ASKED if script_knowledge.knows_ranks else _why_whole


def keep_whole(why: str) -> None:
    """With `auto`: from now on, every rank holds complete optimizer variables. Call this on all ranks together.

    In a thread of the script this does nothing: such a thread starts only after the main thread has called this.
    """
    global _why_whole
    if not _why_whole and is_main_thread():
        _why_whole = why
        pieces.keep_all_whole()
        if settings.get_settings().explain:
            notes.print_note(f"MATEX_STRATEGY=auto: allreduce: {why}")


def is_count_automatic() -> bool:
    """Whether the cost model chooses the number of owners."""
    return settings.get_settings().strategy == "servers:auto" and is_chosen()


def may_change_strategy() -> bool:
    """Whether ranks may switch to another strategy with the same result, because the user chose none.

    They switch by a restart, for which `matex run` must have started them: it sets `proof`.
    """
    user_settings = settings.get_settings()
    is_strategy_open = settings.PREFIX + "STRATEGY" not in os.environ or is_count_automatic()
    return (
        user_settings.adapt == "ranks" and bool(user_settings.proof) and is_strategy_open and world.get_world().size > 1
    )


def compare_strategies(weights: float, slots: float) -> tuple[str, float]:
    """The other of the strategies allreduce and servers:auto, and the seconds that a step would save with it.

    `weights`, `slots`: the bytes of the weights that could be held in pieces, and of their slots: the variables that an
    optimizer has for them, such as momenta.
    """
    if not _known_hosts or not weights:
        return "", 0.0
    hosts = _known_hosts[0]
    fitting_counts = partition.list_fitting_counts(hosts, slots)
    if not fitting_counts:
        return "", 0.0
    seconds_in_pieces = min(hosts.estimate_step(count, weights, slots) for count in fitting_counts)
    gain = hosts.estimate_whole_step(weights, slots) - seconds_in_pieces
    return ("allreduce", -gain) if is_count_automatic() else ("servers:auto", gain)


def note_hosts(link: tuple[float, float] | None) -> None:
    """Record properties of the hosts before training, the same on all ranks. Collective.

    `link`: the measured seconds of a small sum over the ranks, and of each further byte of a sum; None if not measured.
    Rank 0's values count.
    """
    nodes = world.get_world().nodes
    properties = objects.allgather((memory.measure_free(), link), "what hosts have for servers:auto")
    # The use of memory varies. So a node must have MARGIN times the bytes that it is estimated to need.
    free_by_node = {
        node: min(free_bytes for (free_bytes, _), node_of_rank in zip(properties, nodes) if node_of_rank == node)
        / memory.MARGIN
        for node in nodes
    }
    first_link = properties[0][1] if len(free_by_node) > 1 else None  # on one node there is no link
    network = fit_link(first_link[0], first_link[1], len(free_by_node)) if first_link else None
    _known_hosts[:] = [Hosts(nodes, free_by_node, network)]


def list_owners() -> list[int]:
    """The ranks that own a piece of variables.

    Raises SetupError if there are fewer ranks than requested owners, or if no rank remains to train.
    """
    me, strategy = world.get_world(), settings.get_settings().strategy
    if is_count_automatic():
        return partition.choose_owners(me.nodes, _chosen_count[0])
    if me.servers:  # the last ranks only serve
        if me.trainers < 1:
            raise errors.SetupError(
                f"MATEX_STRATEGY={strategy} asks for {me.servers} ranks that only serve, and of {me.size} none is "
                f"left to train. Start {me.servers + 1} ranks or more, or set servers:{me.size}, with which each "
                "owner of weights trains, too."
            )
        return list(range(me.trainers, me.size))
    requested = settings.get_strategy_number(strategy, me.size)
    if requested > me.size and not me.has_lost:  # after a loss, all remaining ranks are owners
        raise errors.SetupError(
            f"MATEX_STRATEGY={strategy} asks for {requested} owners of the weights, and there are {me.size} ranks. "
            f"Each owner is a rank that trains, too: set one of servers:1 to servers:{me.size}, or sharded, with "
            "which each rank is one."
        )
    return partition.choose_owners(me.nodes, requested)


def cut_variable(variable: Any) -> tuple[int, ...]:
    """The offsets at which each rank's piece of a variable begins, and the end of the last piece, in elements.

    Example: if ranks 0 and 2 of 3 own the halves of 64 elements, these are 0, 32, 32, 64.
    """
    owner_ranks = list_owners()
    key = _CUTS, tuple(owner_ranks), world.get_world().size

    def cut() -> tuple[int, ...]:
        balance = _balances.setdefault((key, variable.dtype), partition.Balance(len(owner_ranks), variable.dtype.size))
        cuts = balance.cut(variable.shape.num_elements())
        # Ranks that own nothing have an empty piece, which begins where the piece of the next owner begins.
        return tuple(cuts[bisect.bisect_left(owner_ranks, rank)] for rank in range(world.get_world().size + 1))

    return tags.get_or_make_tag(variable, str(key), cut)


def choose_owners(variables: Sequence[Any], slots: Sequence[Any]) -> None:
    """If the cost model chooses the number of owners, choose it for these variables and slots; report the reason."""
    if is_count_automatic() and not _chosen_count:
        count, why = choose_count(_known_hosts[0], measure_bytes(variables), measure_bytes(slots))
        _chosen_count.append(count)
        notes.print_note(f"MATEX_STRATEGY={settings.get_settings().strategy}: {why}")


def report_owners() -> None:
    """Report the ranks that own a piece, unless all do."""
    if is_chosen() and not is_count_automatic() and len(list_owners()) < world.get_world().size:
        me, owner_ranks = world.get_world(), list_owners()
        text = f"MATEX_STRATEGY={settings.get_settings().strategy}: the optimizer's variables are on rank "
        if me.servers:
            owner_names = ", ".join(f"{rank} ({me.hosts[rank]})" for rank in owner_ranks)
            serving_clause = "which only serves" if len(owner_ranks) == 1 else "which only serve"
            text += f"{owner_names}, {serving_clause}: {me.trainers} of {me.size} ranks train"
        else:
            text += ", ".join(map(str, owner_ranks))
        notes.print_note(text)


def choose_count(hosts: Hosts, weights: float, slots: float) -> tuple[int, str]:
    """The number of owners for weights and slots of these sizes in bytes, and the reason as a sentence.

    Among the numbers for which the slots fit in memory, choose the one with the shortest step, or the largest of equal
    ones.
    """
    rank_count = len(hosts.nodes)
    fitting_counts = partition.list_fitting_counts(hosts, slots)
    best_count = min(
        fitting_counts or [rank_count], key=lambda count: (hosts.estimate_step(count, weights, slots), -count)
    )
    owner_numbers = ", ".join(map(str, partition.choose_owners(hosts.nodes, best_count)))
    owners = f"each of the {rank_count} ranks" if best_count == rank_count else f"rank {owner_numbers} of {rank_count}"
    seconds_by_count = {
        count: f"{1e3 * hosts.estimate_step(count, weights, slots):.1f} ms" for count in (best_count, 1, rank_count)
    }
    text = (
        f"S = {best_count}: the optimizer's {settings.format_bytes(slots)} are in pieces on {owners}. To sum, update "
        "and "
    )
    text += f"publish {settings.format_bytes(weights)} of weights takes {seconds_by_count.pop(best_count)}"
    for count, seconds in seconds_by_count.items():
        memory_clause = "" if count in fitting_counts else ", but memory does not hold it"
        text += f"; with S = {count} it takes {seconds}{memory_clause}"
    if not fitting_counts:
        text += ". Memory holds the pieces with no S, and with this one they are smallest"
    return best_count, f"{text}. This is estimated: {hosts.describe_assumptions()}"


def measure_bytes(variables: Sequence[Any]) -> int:
    """The bytes of complete variables."""
    tf_variables = [find_tf_variable(variable) for variable in variables]
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in tf_variables)
