"""Runs pytest as one rank of several: `mpirun -n 2 python tests/one_voice.py REPORT.xml [pytest arguments]`.

Rank 0 speaks and writes the JUnit report; what the others print is shown only where they fail.
"""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(report: str, arguments: list[str]) -> int:
    rank = next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)
    if rank == 0:
        return pytest.main([*arguments, f"--junitxml={report}"])
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        terminal = os.dup(1)
        os.dup2(output.fileno(), 1)
        code = pytest.main([*arguments, "--color=no"])
        sys.stdout.flush()
        os.dup2(terminal, 1)
        if code not in FINE:
            output.seek(0)
            print(f"\n== rank {rank}\n{output.read()}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
