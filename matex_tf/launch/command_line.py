"""The command line of mpirun for a run on this machine: its mpirun, and the settings of the ranks."""

from __future__ import annotations

import os
import sys

import click

from matex_tf.launch import info, mpirun_command, probe
from matex_tf.launch.run_options import Run
from matex_tf.world import missing_mpi, mpirun_options, placement


def find_mpirun() -> mpirun_command.Mpirun:
    """The mpirun of this machine. Raises click.UsageError if mpi4py loads no MPI, or if there is no mpirun."""
    library = probe.find_mpi_library()
    if "error" in library:
        raise click.UsageError(missing_mpi.describe(library["error"]))
    mpirun = probe.find_mpirun(library)
    if mpirun is None:
        raise click.UsageError(f"there is no mpirun. {info.GET_MPI}")
    if problem := info.describe_other_mpi(mpirun, library):
        raise click.UsageError(problem)
    return mpirun


def make_command_line(run: Run, mpirun: mpirun_command.Mpirun | None = None) -> list[str]:
    """The command line of mpirun for `run`.

    Without `mpirun`, that of this machine is used. Raises click.UsageError if there is none, or if it does not fit.
    """
    mpirun = mpirun or find_mpirun()
    if run.elastic and (mpirun.family != mpirun_options.OPENMPI or mpirun.major < 5):
        raise click.UsageError(
            "--elastic needs Open MPI 5 or later, whose mpirun leaves other ranks alone when one is lost; this "
            f"is {mpirun.family or 'an unknown MPI'} {mpirun.version}. --restarts goes with any MPI"
        )
    environment = run.environment or os.environ
    variables = run.list_settings(environment)
    # `choose_options` prefers the values of the environment. The options of the run prevail over them.
    environment = {name: value for name, value in environment.items() if name not in variables}
    options = mpirun_command.choose_options(
        mpirun, run.ranks, cores=len(placement.list_cores()), is_root=os.geteuid() == 0, user_options=run.options,
        environment=environment, settings=variables, by_memory=probe.has_memory_for(run.ranks, mpirun),
    )  # fmt: skip
    return [mpirun.path, *options, sys.executable, "-m", "matex_tf", *run.target]
