"""Attaching the runtime to this process: once, at import, and only under a launcher.

TensorFlow is left to the script, which may first say by environment variables how it is to be imported. What needs it
is done as soon as it is there, by each rank for itself: ranks may import it at different times, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from typing import Any

from matex_tf import errors, settings
from matex_tf.runtime import excepthook, notes, objects, rank_records, script_frames, seeding, shared_memory, shutdown
from matex_tf.world import launcher_variables, membership, placement, start_variables, task_environment, world

_attached = False


def attach_runtime() -> None:
    """Join the world, place this rank's threads and see that TensorFlow is patched once it is imported.

    Does nothing when alone or the second time.
    """
    global _attached
    if _attached:
        return
    _attached = True
    rank_records.note_launcher(os.environ)
    task_environment.note_launchers(os.environ)
    task = task_environment.find_task(os.environ)
    try:
        if task is not None and (task.size != 1 or settings.PREFIX + "STATE" in os.environ):
            _set_start_variables(has_others=task.size != 1)
        if not world.is_active():
            if task is not None and task.size == 1 and not settings.get_settings().disable:
                # mpirun pins a single rank to one core; alone the script has them all.
                placement.apply_placement(0, 1)
            if task is not None:
                rank_records.note_separate()
                _note_trial(0)
            else:
                _say_how_ranks_start()
            _record_first_steps()
            return
    except (errors.RankError, errors.SettingError) as error:
        if task is None:
            raise SystemExit(f"matex_tf: {error}") from None
        # Each task of the launcher comes here alone; one message is enough.
        joins = isinstance(error, errors.SettingError)
        who = f"rank {task.rank}: " if joins else ""
        text, host = f"matex_tf: {who}{error}\n", socket.gethostname()
        rank_records.report_error(text, task.rank, waits=not joins, size=task.size, host=host, aborts=1)
        if joins:
            shutdown.abort_unjoined(task)
        raise SystemExit(1) from None
    me = world.get_world()
    if not me.is_phantom:
        shutdown.register_end()
        excepthook.attach_hooks()
        launcher_variables.when_asked.append(notes.print_note)
    if "tensorflow" in sys.modules:
        _refuse_late_import()
    placement.apply_placement(me.local_rank, me.local_size)
    if me.rank > 0:
        # Its C++ notes would repeat those of the first rank.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from matex_tf import ops, patches
    from matex_tf.adapt import executor, step_trials
    from matex_tf.microbatches import attach as microbatches
    from matex_tf.monitor import listeners, sampler
    from matex_tf.observe import link_costs, profile, timeline
    from matex_tf.resilience import elastic, elastic_step, fit_hooks, run_state
    from matex_tf.runtime import hooks, watchdog

    elastic.enable_attempts()
    elastic_step.attempt_steps()
    if not me.is_phantom:
        membership.watch_mpi()
        watchdog.start_watching()
    ops.get_library()
    hooks.call_when_imported("tensorflow", lambda _: hooks.note_newer())
    hooks.call_when_imported("tensorflow", lambda _: ops.load_tensorflow_ops())
    _agree_on_settings()
    _say_what_changes_results()
    _say_who_updates()
    rank_records.begin_record()
    executor.start_adapting()  # first, so that what others do at the end of a step is not measured
    shared_memory.note_files()
    run_state.open_run()
    run_state.keep_entropy(seeding.agree_on_seeds(run_state.read_entropy()))
    timeline.start_timeline()
    profile.start_profile()
    sampler.start_sampler()
    listeners.start_listening(_find_call)
    elastic.after_loss.append(sampler.note_loss)
    link_costs.start_links()
    microbatches.start_parts()
    patches.install()
    step_trials.start_trials()
    if run_state.is_kept():
        fit_hooks.install()  # around what prepares the data of fit: it is told what the script gives
    _let_ranks_train_apart()
    _record_first_steps()
    _note_trial(me.rank)
    if (asked := settings.get_settings().plan) is not None:
        from matex_tf.observe import measured_steps
        from matex_tf.servers.pieces import update_costs

        listeners.listen_for(measured_steps.start_measuring(asked, update_costs.describe_updates))


def _find_call(model: Any) -> int | None:
    """The number of the call of `fit` that trains `model`, where the state of the run is kept."""
    from matex_tf.resilience import run_state

    run = run_state.get_current()
    kept = None if run is None else run.within
    return None if kept is None or kept.model is not model else kept.number


def _say_how_ranks_start() -> None:
    """At a prompt or in a notebook, where nothing else tells that one process is all there is."""
    if not (hasattr(sys, "ps1") or sys.flags.interactive):
        return
    with contextlib.suppress(errors.SettingError):  # which is nobody's concern alone
        if not settings.get_settings().disable:
            notes.print_note(
                "this session is one process; `matex run -n 4 script.py` in a terminal starts 4 ranks, and here "
                'matex_tf.launch("script.py", ranks=4)'
            )


def _record_first_steps() -> None:
    """Where `matex run --check` asks for it, write down the first steps; alone, nothing else reads the settings."""
    if settings.PREFIX + "CHECK" in os.environ:
        from matex_tf.observe import check_recorder

        check_recorder.start_recorder()


def _let_ranks_train_apart() -> None:
    """Where a strategy says so; `matex plan` notes whether it could be another one."""
    chosen = settings.get_settings()
    names = [settings.get_strategy_name(chosen.strategy)] if chosen.plan is None else ["local", "async"]
    if {"local", "async"}.isdisjoint(names):
        return
    from matex_tf.apart import keras_fit, local

    keras_fit.HOOKS.install()
    if "local" in names:
        local.start_listening()
    if "async" in names:
        keras_fit.start_listening()


def _note_trial(rank: int) -> None:
    """In a trial of `matex tune`, note what `fit` logs."""
    if settings.PREFIX + "TRIAL" in os.environ:
        from matex_tf.monitor import trial_hooks, trial_log

        trial_log.start_log(rank)
        if trial_log.is_on():
            trial_hooks.HOOKS.install()


def _set_start_variables(has_others: bool) -> None:
    """`python -m matex_tf` starts itself anew with the variables that it lacks, before anything else has begun."""
    wanted = start_variables.HASH_SEED if sys.flags.hash_randomization else {}
    chosen = settings.get_settings()
    if has_others and chosen.large_pages and not chosen.disable:
        wanted = wanted | start_variables.LARGE_PAGES
    if sys.argv[:1] == ["-m"] and wanted.keys() - os.environ.keys():
        os.environ.update({**wanted, **os.environ})
        os.execv(sys.executable, sys.orig_argv)


def _agree_on_settings() -> None:
    from matex_tf import ops

    mine = {name: value for name, value in os.environ.items() if name.startswith(settings.PREFIX)}
    found = objects.allgather((mine, ops.can_take_addresses()), "comparing the settings")
    everyone = [theirs for theirs, _ in found]
    for rank, theirs in enumerate(everyone):
        for name in sorted(set(theirs) | set(everyone[0])):
            if theirs.get(name) != everyone[0].get(name):
                hosts = world.get_world().hosts
                raise errors.MismatchError(
                    f"{name} is {everyone[0].get(name)!r} on rank 0 ({hosts[0]}) but {theirs.get(name)!r} on rank "
                    f"{rank} ({hosts[rank]}): ranks must have the same settings. Export it on every host, for instance "
                    f"with `mpirun -x {name} ...`."
                )
    said = ops.agree_on_addresses([support for _, support in found])
    if said:
        notes.print_note(said)


def _say_what_changes_results() -> None:
    chosen = settings.get_settings()
    if chosen.compression != settings.NO_COMPRESSION:
        idle = chosen.compression.between_hosts and not world.get_world().has_several_nodes
        says = "changes nothing here, where all ranks are on one host" if idle else "changes results"
        notes.print_note(f"MATEX_COMPRESSION={chosen.compression} {says}")


def _say_who_updates() -> None:
    """Say it, and note what a choice depends on.

    Raises:
        SetupError: there are fewer ranks than are to own a piece of the weights.
    """
    from matex_tf.observe import link_costs
    from matex_tf.servers.pieces import owners

    owners.report_owners()
    if owners.is_count_automatic() or owners.may_change_strategy():
        link = link_costs.find_link(world.get_world().hosts)
        owners.note_hosts((link.start_up, link.byte) if link is not None else None)


def _refuse_late_import() -> None:
    """TensorFlow that has run has made its threads and may have traced functions without us."""
    from tensorflow.python.eager import context

    started = context.context()._context_handle is not None
    from tensorflow.python.framework import ops as framework_ops

    graph = framework_ops._default_graph_stack._global_default_graph  # asked for otherwise, it would be made
    if not started and (graph is None or not graph.get_operations()):
        return
    ours = ("matex_tf", "_frozen_importlib", "_frozen_importlib_external")
    frame = next(one for one, _ in traceback.walk_stack(None) if script_frames.find_package(one) not in ours)
    line = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    raise errors.SetupError(
        "TensorFlow has already run operations before `import matex_tf`, so that it cannot be patched any more. Move "
        f"the line `import matex_tf` ({line}) up, best to the first line of the script, above everything that makes "
        "tensors, variables, models or datasets."
    )
