"""Attaches the runtime to this process once, when matex_tf is imported: the process becomes a rank of a run.

Nothing here imports TensorFlow, because a script may set environment variables before it imports TensorFlow. Work that
needs TensorFlow is registered, and done when this rank imports TensorFlow: ranks may import it at different times, or
never.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from matex_tf import errors, settings
from matex_tf.runtime import excepthook, notes, objects, rank_records, script_frames, seeding, shared_memory, shutdown
from matex_tf.world import (
    launcher_processes,
    launcher_variables,
    placement,
    script_knowledge,
    start_variables,
    task_environment,
    world,
)

if TYPE_CHECKING:
    from matex_tf.resilience import run_state

_is_attached = False
_error: BaseException | None = None
"""The error that ended the first call of `attach_runtime`."""


def attach_runtime() -> None:
    """Join the world, set cores and threads of this rank, and install the hooks on TensorFlow and Keras. Collective.

    It does all of this in a process that is one of several ranks, or that works like one: a single rank that keeps its
    state (MATEX_STATE) or computes its batches in parts (MATEX_MICROBATCH), or a phantom, a process of `matex plan`,
    whose other ranks do not exist. `_attach_single` attaches any other single process, with or without a launcher.

    A second call does nothing, or raises the error of the first call again, so that no rank continues without hooks if
    the script catches the error and imports matex_tf again. An error before the ranks have joined ends the process,
    with a message of one line.
    """
    global _is_attached, _error
    if _error is not None:
        raise _error
    if _is_attached:
        return
    _is_attached = True
    try:
        _attach()
    except BaseException as error:
        _error = error
        raise


def _attach() -> None:
    """See `attach_runtime`."""
    rank_records.note_launcher(os.environ)
    launcher_processes.note_launchers(os.environ)
    task = task_environment.find_task(os.environ)
    try:
        # A size of 0 is an unknown size, perhaps several. A single rank that keeps its state works like one of several,
        # so it needs their variables too.
        may_have_others = task is not None and task.size != 1
        if may_have_others or (task is not None and settings.PREFIX + "STATE" in os.environ):
            _set_start_variables(has_other_ranks=may_have_others)
        own_world = world.get_world()  # starts MPI, and waits for the other ranks
        if not own_world.is_active:
            _attach_single(task)
            return
    except (errors.RankError, errors.SettingError) as error:
        _end_for_error(error, task)
    _prepare_process(own_world)
    _start_engine(own_world)
    _apply_common_settings()
    run = _open_run()
    _start_recorders()
    _install_hooks(run)
    _record_first_steps()
    _log_trial(own_world.rank)
    _measure_for_plan()


def _prepare_process(own_world: world.World) -> None:
    """Install the handlers of ends and errors, and set cores and threads, before this rank imports TensorFlow."""
    if not own_world.is_phantom:  # a phantom has no other ranks, with which it would end
        shutdown.register_end()
        excepthook.attach_hooks()
        # If the script reads a variable of the launcher that was removed, a note names the function to call instead.
        launcher_variables.when_read.append(notes.print_note)
    if "tensorflow" in sys.modules:
        _refuse_late_import()
    placement.apply_placement(own_world.local_rank, own_world.local_size)
    if own_world.rank > 0:
        # Messages of TensorFlow's C++ code would repeat those of rank 0.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def _start_engine(own_world: world.World) -> None:
    """Start the engine (the compiled code that makes collectives) and the watchdog, which reports waits. Collective.

    Before, enable the attempts of elastic runs, which repeat work that a lost rank has interrupted.
    """
    from matex_tf import ops
    from matex_tf.resilience import elastic, elastic_step
    from matex_tf.runtime import hooks, watchdog

    # Attempts of Python collectives, of which the next lines make some; then of calls of steps.
    elastic.enable_attempts()
    elastic_step.attempt_steps()
    if not own_world.is_phantom:
        script_knowledge.watch_mpi()
        watchdog.start_watching()
    ops.get_library()
    hooks.call_when_imported("tensorflow", lambda _: hooks.note_newer())
    hooks.call_when_imported("tensorflow", lambda _: ops.load_tensorflow_ops())


def _apply_common_settings() -> None:
    """Compare the settings of all ranks, and act on the settings of owners (ranks that update pieces of weights) and of
    slices that are adapted to the ranks' speeds. Collective.
    """
    from matex_tf.adapt import slice_adapter

    _compare_settings()
    _report_compression()
    _prepare_owners()
    rank_records.begin_record()  # for `matex run`
    slice_adapter.start_adapting()  # before other listeners, whose work at the end of a step is then not measured


def _open_run() -> run_state.Run | None:
    """The run whose state MATEX_STATE keeps, if any. All ranks agree on the seeds of random numbers. Collective."""
    from matex_tf.resilience import run_state

    shared_memory.note_files()  # so that `matex run` can remove them after a crash
    run = run_state.open_run()
    entropy = seeding.agree_on_seeds(None if run is None else run.entropy)
    if run is not None:
        run.keep_entropy(entropy)
    return run


def _start_recorders() -> None:
    """Start the records of times and metrics that settings request. Collective."""
    from matex_tf.monitor import listeners, sampler
    from matex_tf.observe import link_costs, profile, timeline

    timeline.start_timeline()
    profile.start_profile()
    sampler.start_sampler()
    listeners.start_listening(_find_fit_number)
    link_costs.start_links()


def _install_hooks(run: run_state.Run | None) -> None:
    """Install the hooks on TensorFlow and Keras, and listeners to steps. `run`: of `_open_run`."""
    from matex_tf import patches
    from matex_tf.adapt import step_trials
    from matex_tf.microbatches import attach as microbatches
    from matex_tf.resilience import fit_hooks

    microbatches.start_parts()  # for MATEX_MICROBATCH
    patches.install()
    step_trials.start_trials()  # for settings that are `auto`
    if run is not None:
        fit_hooks.install()  # after the hooks that prepare the data of `fit`: it needs the arguments of the script
    _start_independent_strategies()


def _measure_for_plan() -> None:
    """In a process of `matex plan`, measure the steps."""
    phantom = settings.get_settings().plan
    if phantom is None:
        return
    from matex_tf.monitor import listeners
    from matex_tf.observe import measured_steps
    from matex_tf.servers.pieces import update_costs

    listeners.listen_for(measured_steps.start_measuring(phantom, update_costs.describe_updates))


def _attach_single(task: task_environment.Task | None) -> None:
    """Attach a process without other ranks. `task`: its task under a launcher; None without a launcher."""
    if task is None:
        _explain_how_to_start()
    else:
        if task.size == 1 and not settings.get_settings().disable:
            placement.apply_placement(0, 1)  # mpirun binds a single rank to one core; the script alone has all cores
        rank_records.note_separate()
        _log_trial(0)
    _record_first_steps()


def _end_for_error(error: errors.RankError | errors.SettingError, task: task_environment.Task | None) -> NoReturn:
    """End this process for an error before it has joined the other ranks. Only one rank prints it.

    Perhaps only this rank has an invalid setting, and the others wait in MPI_Init: this rank joins MPI to abort them,
    and its message has its number. Other errors, such as a missing MPI, are those of every rank, which ends by itself.
    """
    if task is None:
        raise SystemExit(f"matex_tf: {error}") from None
    aborts_others = isinstance(error, errors.SettingError)
    prefix = f"rank {task.rank}: " if aborts_others else ""
    message, host = f"matex_tf: {prefix}{error}\n", socket.gethostname()
    if not rank_records.note_error(message, task.rank, size=task.size, host=host, abort_code=1):
        rank_records.show_error(message, task.rank, waits=not aborts_others)
    if aborts_others:
        shutdown.abort_unjoined(task)
    raise SystemExit(1) from None


def _find_fit_number(model: Any) -> int | None:
    """The number of the call of `fit` that trains `model`; None if the state of the run is not saved."""
    from matex_tf.resilience import run_state

    run = run_state.get_current()
    fit = None if run is None else run.current_fit
    return None if fit is None or fit.model is not model else fit.number


def _explain_how_to_start() -> None:
    """At a prompt or in a notebook, print how to start ranks."""
    if not (hasattr(sys, "ps1") or sys.flags.interactive):
        return
    with contextlib.suppress(errors.SettingError):  # without ranks, an invalid setting has no effect
        if not settings.get_settings().disable:
            notes.print_note(
                "this session is one process; `matex run -n 4 script.py` in a terminal starts 4 ranks, and here "
                'matex_tf.launch("script.py", ranks=4)'
            )


def _record_first_steps() -> None:
    """Record the first steps for `matex run --check`, which sets MATEX_CHECK."""
    # The environment is asked first: without a launcher no settings are read, except by a checked script.
    if settings.PREFIX + "CHECK" in os.environ:
        from matex_tf.observe import check_recorder

        check_recorder.start_recorder()


def _start_independent_strategies() -> None:
    """Start the strategy local or async. For `matex plan`, both record whether they would be possible."""
    current_settings = settings.get_settings()
    names = {"local", "async"}
    if current_settings.plan is None:
        names &= {settings.get_strategy_name(current_settings.strategy)}
    if not names:
        return
    from matex_tf.apart import keras_fit, local

    keras_fit.HOOKS.install()
    if "local" in names:
        local.LocalSteps().start_listening()
    if "async" in names:
        keras_fit.start_listening()


def _log_trial(rank: int) -> None:
    """In a trial of `matex tune`, record the logs of `fit`."""
    if settings.PREFIX + "TRIAL" in os.environ:
        from matex_tf.monitor import trial_hooks, trial_log

        trial_log.start_log(rank)
        if trial_log.is_on():
            trial_hooks.HOOKS.install()


def _set_start_variables(has_other_ranks: bool) -> None:
    """Under `python -m matex_tf`, start this process again if it lacks variables that are read only at its start.

    A script that imports matex_tf itself is not started again: it may have done work before.
    """
    # Without randomization (a seed of 0), all processes have the same hashes.
    needed_variables = start_variables.HASH_SEED if sys.flags.hash_randomization else {}
    current_settings = settings.get_settings()
    if has_other_ranks and current_settings.large_pages and not current_settings.disable:
        needed_variables = needed_variables | start_variables.LARGE_PAGES
    # While `python -m matex_tf` imports this package, and until it runs `__main__`, the first argument is "-m".
    is_module_run = sys.argv[:1] == ["-m"]
    if is_module_run and needed_variables.keys() - os.environ.keys():
        os.environ.update({**needed_variables, **os.environ})  # the user's own values remain
        os.execv(sys.executable, sys.orig_argv)


def _compare_settings() -> None:
    """Compare the settings of all ranks, and agree whether MPI gets addresses in the memory of GPUs. Collective.

    Raises:
        MismatchError: on all ranks, if settings differ.
    """
    from matex_tf import ops

    own_settings = {name: value for name, value in os.environ.items() if name.startswith(settings.PREFIX)}
    gathered_settings = objects.allgather((own_settings, ops.can_take_addresses()), "comparing the settings")
    first_settings = gathered_settings[0][0]
    for rank, (rank_settings, _) in enumerate(gathered_settings):
        for name in sorted(set(rank_settings) | set(first_settings)):
            if rank_settings.get(name) != first_settings.get(name):
                hosts = world.get_world().hosts
                raise errors.MismatchError(
                    f"{name} is {first_settings.get(name)!r} on rank 0 ({hosts[0]}) but "
                    f"{rank_settings.get(name)!r} on rank {rank} ({hosts[rank]}): ranks must have the same settings. "
                    f"Export it on every host, for instance with `mpirun -x {name} ...`."
                )
    if note := ops.agree_on_addresses([can_take_addresses for _, can_take_addresses in gathered_settings]):
        notes.print_note(note)


def _report_compression() -> None:
    """Print a note if gradients are compressed, because this changes results."""
    current_settings = settings.get_settings()
    if current_settings.compression != settings.NO_COMPRESSION:
        is_unused = current_settings.compression.between_hosts and not world.get_world().has_several_nodes
        effect = "changes nothing here, where all ranks are on one host" if is_unused else "changes results"
        notes.print_note(f"MATEX_COMPRESSION={current_settings.compression} {effect}")


def _prepare_owners() -> None:
    """Report the ranks that own pieces of weights, and gather what a later choice of owners needs. Collective.

    The number of owners is chosen later with `servers:auto`, and also if ranks may switch to another strategy. The
    choice needs the properties of the hosts and the cost of their link.

    Raises:
        SetupError: there are fewer ranks than owners.
    """
    from matex_tf.observe import link_costs
    from matex_tf.servers.pieces import owners

    owners.report_owners()
    if owners.is_count_automatic() or owners.may_change_strategy():
        link = link_costs.find_link(world.get_world().hosts)
        owners.note_hosts((link.start_up, link.byte) if link is not None else None)


def _refuse_late_import() -> None:
    """Raise an error if TensorFlow has run: it has started its threads, and may have traced functions without hooks."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops as framework_ops

    has_started = context.context()._context_handle is not None
    graph = framework_ops._default_graph_stack._global_default_graph  # public functions would create the graph
    if not has_started and (graph is None or not graph.get_operations()):
        return
    importers = ("matex_tf", "_frozen_importlib", "_frozen_importlib_external")
    script_frame = next(
        frame for frame, _ in traceback.walk_stack(None) if script_frames.find_package(frame) not in importers
    )
    line = f"{script_frame.f_code.co_filename}, line {script_frame.f_lineno}"
    raise errors.SetupError(
        "TensorFlow has already run operations before `import matex_tf`, so that it cannot be patched any more. Move "
        f"the line `import matex_tf` ({line}) up, best to the first line of the script, above everything that makes "
        "tensors, variables, models or datasets."
    )
