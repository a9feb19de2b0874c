"""The slots of concurrent trials. `Host.slots` is another thing: how many ranks may run on a host."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matex_tf.tune.trials.trial import Slot
from matex_tf.world import placement, task_environment
from matex_tf.world.hosts.host_lists import Host, is_here, list_hosts


class HostsError(ValueError):
    """The hosts of a trial have too few slots for its ranks."""


def deal_slots(cores: Sequence[placement.Core], gpus: Sequence[str], parallel: int) -> list[Slot]:
    """Make `parallel` slots with separate cores and GPUs. If there are fewer cores than slots, each slot has all cores;
    likewise for GPUs, in another order for each slot: a script begins with the first one.
    """
    slots = []
    for index in range(parallel):
        cpus = tuple(cpu for core in placement.choose_cores(cores, index, parallel) for cpu in core)
        first_gpu = index % max(len(gpus), 1)
        own_gpus = gpus[index::parallel] if len(gpus) >= parallel else [*gpus[first_gpu:], *gpus[:first_gpu]]
        slots.append(Slot(cpus, tuple(own_gpus)))
    return slots


def deal_hosts(hosts: Sequence[Host], parallel: int) -> list[Slot]:
    """Make `parallel` slots with separate hosts, or with parts of a host if there are fewer hosts than slots.

    For example, 3 slots on 2 hosts are 1/2 and 2/2 of the first host, and all of the second.
    """
    if parallel <= len(hosts):
        return [Slot(hosts=tuple(placement.choose_cores(hosts, index, parallel))) for index in range(parallel)]
    slots = []
    for host_index, host in enumerate(hosts):
        # The number of slots on this host, if each slot in turn goes to the next host.
        slot_count = len(range(host_index, parallel, len(hosts)))
        slots += [
            Slot(hosts=(host,), part=f"{i + 1}/{slot_count}" if slot_count > 1 else "") for i in range(slot_count)
        ]
    return slots


def make_slots(parallel: int, ranks: int, options: Sequence[str], folder: str) -> list[Slot]:
    """The slots of trials with `ranks` ranks each: on the hosts of `options` or of an allocation, or on this machine.

    Raises:
        HostsError: the hosts of a trial have too few slots.
    """
    # `matex tune` may itself be a task of a launcher: without its variables, all hosts of the allocation are listed.
    hosts = list_hosts(options, task_environment.remove_task_variables(os.environ), folder)
    is_only_here = not hosts or (len(hosts) == 1 and is_here(hosts[0]))
    # A single trial needs no hosts in its slot, even if there are several: its `matex run` finds all of them itself.
    if parallel == 1 or is_only_here:
        gpus = placement.list_gpus(placement.count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        # A single trial gets no list of GPUs: it sees all of them.
        return deal_slots(placement.list_cores(), gpus if parallel > 1 else [], parallel)
    slots = deal_hosts(hosts, parallel)
    for slot in slots:
        trials_on_host = int(slot.part.partition("/")[2] or 1)  # from "1/2": 2 trials, which share the host's slots
        if sum(max(1, host.slots // trials_on_host) for host in slot.hosts) < ranks:
            share_text = f" of {trials_on_host} trials" if trials_on_host > 1 else ""
            names = ", ".join(f"{host.name} ({host.slots}{share_text})" for host in slot.hosts)
            raise HostsError(
                f"a trial has {ranks} ranks, but one of {parallel} concurrent trials would have the host {names}, "
                "with too few slots. Lower --parallel, or name more slots of each host (Slurm: --ntasks-per-node)"
            )
    return slots
