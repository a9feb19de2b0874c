"""`matex_tf.launch`: start a script as a run of its own, on this machine or as a cluster job, from Python."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matex_tf import arguments
from matex_tf.deploy import following, notebook, run_folder
from matex_tf.deploy.cluster import Cluster, check_cancellable
from matex_tf.deploy.clusters import CLUSTERS, KINDS
from matex_tf.deploy.job import ENDED, RUNNING, Job, State
from matex_tf.deploy.options import NAME, Options, check_variables, distribute_ranks, merge_options
from matex_tf.monitor import progress, recording


def _make_cluster(kind: type[Options]) -> Callable[..., Options]:
    """The function that makes a cluster of this `kind` for `launch`."""

    def make_cluster(**options: Any) -> Options:
        return merge_options(kind, options)

    # Editors and `help` then show the names of the options and their built-in defaults.
    make_cluster.__name__ = make_cluster.__qualname__ = kind.__name__
    make_cluster.__doc__ = (
        f"A cluster for `launch`: the options of `matex submit --{kind.get_kind()}`, over those of the user's files."
    )
    make_cluster.__signature__ = inspect.signature(kind).replace(return_annotation=kind)  # type: ignore[attr-defined]
    return make_cluster


MAKERS = {kind.__name__: _make_cluster(kind) for kind in KINDS.values()}  # by the public names, such as "Slurm"


class Here:
    """A run on this machine, with the operations of a `Cluster` that `LaunchedRun` calls.

    variables: added to the environment of the run.
    """

    sees_files = True

    def __init__(self, command_line: Sequence[str], folder: Path, variables: Mapping[str, str]):
        environment = {**os.environ, **variables, "MATEX_RECORD": str(folder.absolute())}
        with (folder / "output").open("wb") as output:
            self._child = subprocess.Popen(
                command_line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        self.job = Job(str(self._child.pid), str(folder))

    def find_state(self, job: Job) -> State:
        exit_code = self._child.poll()
        if exit_code is None:
            return State(RUNNING, "RUNNING here")
        # A run that signal S has ended has the code -S in Python, and 128 + S in a shell.
        return State(ENDED, "ENDED", code=exit_code if exit_code >= 0 else 128 - exit_code)

    def follow_job(self, job: Job, shows_output: bool = True) -> int:
        """Copy the output until the run ends. Returns its exit code."""
        return following.follow_job(job, lambda: self.find_state(job), run_folder.make_reader(job.folder), shows_output)

    def cancel_job(self, job: Job) -> None:
        check_cancellable(job, self.find_state(job))
        self._child.send_signal(signal.SIGTERM)
        self._child.wait()


class LaunchedRun:
    """A run that `launch` has started. `folder` has its records; "" for a Kubernetes job without a volume."""

    def __init__(self, cluster: Cluster[Any] | Here, job: Job):
        self.folder = os.path.abspath(job.folder) if job.folder else ""  # the program may change its current folder
        self._cluster, self._job = cluster, replace(job, folder=self.folder)

    def __repr__(self) -> str:
        return f"<run {self._job.id}{f' in {self.folder}' if self.folder else ''}>"

    @property
    def id(self) -> str:
        """The scheduler's job id, or the process id of a run on this machine."""
        return self._job.id

    def _repr_html_(self) -> str:
        """The current display, for front ends that show HTML."""
        return notebook.format_page(self, self.now())

    def _ipython_display_(self) -> None:
        """Display the run in a notebook cell, and keep the display up to date."""
        notebook.show_run(self)

    def now(self) -> State:
        """The present state of the run; `code` is its exit code, if it has ended.

        Raises UnreachableError if the scheduler does not answer.
        """
        return self._cluster.find_state(self._job)

    def state(self) -> str:
        """The state of the run, as text. Raises UnreachableError if the scheduler does not answer."""
        return str(self.now())

    def follow(self) -> int:
        """Print the run's output and each change of its state until it ends. Returns its exit code.

        In a notebook, the cell displays the run instead: its learning curves, its ranks and its last output lines.
        """
        if notebook.is_notebook():
            thread = notebook.show_run(self)
            exit_code = self.wait()
            thread.join()  # the display then shows the end
        else:
            exit_code = self._cluster.follow_job(self._job)
        return exit_code

    def wait(self) -> int:
        """Wait until the run has ended, and print only changes of its state. Returns its exit code."""
        return self._cluster.follow_job(self._job, shows_output=False)

    def cancel(self) -> None:
        """End the run, or remove it from the queue. Raises JobError, also if the run has already ended."""
        self._cluster.cancel_job(self._job)

    def metrics(self) -> list[dict[str, float]]:
        """The logs of `fit`, one dict for each finished epoch; "epoch" is its number.

        Raises:
            RuntimeError: the run has no records, or this machine does not see their volume.
        """
        if not self.folder:
            raise RuntimeError(f"nothing of {self.id} is recorded: that needs a volume, matex_tf.Kubernetes(claim=...)")
        if not self._cluster.sees_files and not Path(self.folder).parent.is_dir():
            raise RuntimeError(f"{self.id} is recorded in {self.folder} of its volume, which this machine does not see")
        try:
            run = recording.open_run(self.folder)
        except recording.RecordingError:
            return []  # no epoch has finished
        return [{"epoch": epoch.number, **epoch.logs} for epoch in progress.list_kept_epochs(run.starts)]


def launch(
    script: str | os.PathLike[str],
    args: Sequence[Any] = (),
    *,
    ranks: int | None = None,
    cluster: Options | None = None,
    restarts: int | None = None,
    adapt: bool | str = False,
    strategy: str = "",
    elastic: bool = False,
    run: str | Sequence[str] = (),
    env: Mapping[str, Any] | None = None,
) -> LaunchedRun:
    """Start `script` with `args` on `ranks` ranks, on `cluster` (`matex_tf.Slurm(nodes=4)`) or on this machine.

    `launch` returns at once. `ranks` is optional with a cluster; if given, they are distributed evenly over its nodes.
    `restarts`, `adapt` (True or "ranks"), `strategy` and `elastic` are options of `matex run`; `run` has further
    options, each as it is typed ("--profile"). By default there are no restarts on this machine, and those of `cluster`
    there. `env`: environment variables of the run.

    Raises:
        FileNotFoundError: the script does not exist on this machine.
        ValueError, TypeError: ranks and nodes contradict one another, or a value is invalid.
        JobError: the cluster refused the job; no job and no folder remain.
    """
    target = [os.fspath(script), *arguments.check_words("launch", "args", args)]
    if ranks is not None:
        arguments.check_whole_number("launch", "ranks", ranks)
    kind = CLUSTERS[cluster.get_kind()] if isinstance(cluster, Options) else None
    if not (kind and not kind.sees_files) and not os.path.isfile(target[0]):
        raise FileNotFoundError(f"there is no file {target[0]} in {os.getcwd()}")
    run_options, variables = _list_run_options(adapt, strategy, elastic, run), _check_variables(env)
    if cluster is None:
        if ranks is None:
            raise TypeError("launch: how many ranks? For example: matex_tf.launch('train.py', ranks=4)")
        options = Options(ranks_per_node=ranks, restarts=restarts or 0, run=run_options).complete(target)
        # The records of the run have to be in its folder; its state may be anywhere on this machine.
        check_variables(variables.keys() - {"MATEX_STATE"})
        folder = run_folder.make_folder(options.name)
        local_run = Here(options.make_command(target), folder, variables)
        return LaunchedRun(local_run, local_run.job)
    if kind is None:
        raise TypeError(
            f"launch: expected cluster to be matex_tf.Slurm(...) or another of {', '.join(MAKERS)}; given {cluster!r}"
        )
    if ranks is not None:
        cluster = distribute_ranks(cluster, ranks)
    restarts = cluster.restarts if restarts is None else restarts
    cluster = replace(cluster, run=(*cluster.run, *run_options), restarts=restarts).add_variables(variables)
    return LaunchedRun(kind, kind.submit_job(cluster.complete(target), target))


def _list_run_options(adapt: bool | str, strategy: str, elastic: bool, run: str | Sequence[str]) -> list[str]:
    """The options of `matex run`, each as it is typed. Raises ValueError."""
    if adapt not in (True, False, "on", "off", "ranks"):
        raise ValueError(f"launch: expected adapt to be True, False or 'ranks'; given {adapt!r}")
    options = []
    if adapt not in (False, "off"):  # True, "on" or "ranks"
        options.append("--adapt=ranks" if adapt == "ranks" else "--adapt=on")
    if strategy:
        options.append(shlex.quote(f"--strategy={strategy}"))  # because `Options.run` is in shell syntax
    if elastic:
        options.append("--elastic")
    if isinstance(run, str):
        run = [run] if run else []
    return [*options, *run]


def _check_variables(env: Mapping[str, Any] | None) -> dict[str, str]:
    """The environment variables of a run, as strings. Raises TypeError, ValueError."""
    if env is not None and not isinstance(env, Mapping):
        raise TypeError(f"launch: expected env to be a dictionary, as {{'NAME': 'value'}}; given {env!r}")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or "\0" in str(value):
            raise ValueError(f"launch: expected env to be names of letters, digits and _, with texts; given {name!r}")
    return {name: str(value) for name, value in (env or {}).items()}
