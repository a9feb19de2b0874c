"""Settings that are not the same on all ranks, or wrong on one of them: an error that names them, on no rank a hang."""

import pytest

import launch

SCRIPT = """
import os, sys
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    os.environ["MATEX_ALGORITHM"] = sys.argv[1]
import matex_tf
print("went on")
"""


@pytest.mark.parametrize("first", ["mpi", "auto"], ids=["by MPI", "by memory"])
def test_settings_that_differ_are_both_named(first):
    result = launch.run(2, SCRIPT, "ring", env={"MATEX_ALGORITHM": first}, module=False)
    assert result.returncode == 1 and "went on" not in result.stdout
    assert f"MATEX_ALGORITHM is '{first}' on rank 0 (" in result.stderr, result.stderr
    assert "but 'ring' on rank 1 (" in result.stderr and "Export it on every host" in result.stderr


def test_a_setting_that_is_wrong_on_one_rank_is_said():
    later = SCRIPT.replace(
        "import matex_tf", "else:\n    time.sleep(1)\n    print('joins', flush=True)\nimport matex_tf"
    )
    result = launch.run(2, "import time" + later, "tree", module=False, cold=True)
    assert result.returncode == 1 and "went on" not in result.stdout
    assert "joins" in result.stdout, "mpirun may hang if a rank ends while another connects to it"
    wanted = "matex_tf: rank 1: MATEX_ALGORITHM='tree': expected one of auto, mpi, ring, two_level."
    assert wanted in result.stderr, result.stderr
