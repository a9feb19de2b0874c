"""The mpirun command line as a function of the MPI, the user and the cores."""

from __future__ import annotations

import os

import pytest

from matex_tf import launch

OPENMPI_5 = launch.Mpirun("/opt/bin/mpirun", launch.OPENMPI, "5.0.11")
OPENMPI_4 = launch.Mpirun("/opt/bin/mpirun", launch.OPENMPI, "4.1.6")
MPICH = launch.Mpirun("/opt/bin/mpirun", launch.MPICH, "4.3.0")
INTEL = launch.Mpirun("/opt/bin/mpirun", launch.INTEL, "2021.14")


@pytest.mark.parametrize(
    "text, family, version",
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/", launch.OPENMPI, "5.0.11"),
        ("mpirun (Open MPI) 4.1.4", launch.OPENMPI, "4.1.4"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost", launch.OPENMPI, "5.0.11"),
        ("HYDRA build details:\n    Version:                4.3.0\n    Release Date: 2025", launch.MPICH, "4.3.0"),
        ("MPICH Version:      4.3.0", launch.MPICH, "4.3.0"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121", launch.INTEL, "2021.14"),
        ("something else", "", ""),
    ],
)
def test_the_mpi_is_recognised(text, family, version):
    assert (launch.family_of(text), launch.version_of(text)) == (family, version)


def test_mpirun_is_looked_for_beside_the_library_first():
    found = launch.candidates("/apps/mpi/lib/libmpi.so.40", os.pathsep.join(["/usr/bin", "", "/apps/mpi/bin"]), "/venv")
    assert found[0] == "/apps/mpi/bin/mpirun"
    assert found.index("/usr/bin/mpirun") < found.index("/venv/bin/mpirun")
    assert len(set(found)) == len(found)
    assert "/usr/bin/mpirun" in launch.candidates("/usr/lib/x86_64-linux-gnu/libmpi.so.40", "", "/venv")[:3]
    assert launch.candidates(None, "", "/venv") == ["/venv/bin/mpirun"]


@pytest.mark.parametrize(
    "words, options, target",
    [
        ("train.py", "", "train.py"),
        ("--tag-output train.py -n 3", "--tag-output", "train.py -n 3"),
        ("--host a:2,b:2 train.py", "--host a:2,b:2", "train.py"),
        ("--mca btl tcp,self -x OMP_NUM_THREADS=2 train.py --epochs 3", "--mca btl tcp,self -x OMP_NUM_THREADS=2",
         "train.py --epochs 3"),
        ("--bind-to=core train.py", "--bind-to=core", "train.py"),
        ("-m package.module -x", "", "-m package.module -x"),
        ("--host a -m package.module", "--host a", "-m package.module"),
        ("-genv A 1 -ppn 2 train.py", "-genv A 1 -ppn 2", "train.py"),
        ("--no-such-flag train.py", "--no-such-flag", "train.py"),
        ("--no-such-option value train.py", "--no-such-option value", "train.py"),
        ("--no-such-flag -- script", "--no-such-flag", "script"),
        ("--report-bindings", "--report-bindings", ""),
    ],
)  # fmt: skip
def test_options_end_where_the_script_begins(words, options, target):
    assert launch.split_options(words.split()) == (options.split(), target.split())


def line(mpirun, ranks, cores, root=False, given="", environment=None):
    return " ".join(launch.options(mpirun, ranks, cores, root, given.split(), environment))


def test_open_mpi_5():
    assert line(OPENMPI_5, 4, 16) == (
        "--bind-to none --map-by :OVERSUBSCRIBE -x PYTHONHASHSEED=0 -x MATEX_PLACEMENT=spread -n 4"
    )
    assert "--allow-run-as-root" in line(OPENMPI_5, 4, 16, root=True)
    assert "--mca mpi_yield_when_idle 1" in line(OPENMPI_5, 16, 16)


def test_open_mpi_4_has_another_word_for_more_ranks_than_cores():
    assert line(OPENMPI_4, 4, 2).startswith("--bind-to none --oversubscribe --mca mpi_yield_when_idle 1 ")


def test_mpich_and_intel():
    assert line(MPICH, 4, 2, root=True) == "-bind-to none -genv PYTHONHASHSEED 0 -genv MATEX_PLACEMENT spread -n 4"
    assert line(INTEL, 4, 2) == (
        "-genv PYTHONHASHSEED 0 -genv MATEX_PLACEMENT spread -genv I_MPI_PIN 0 -genv I_MPI_THREAD_YIELD 2 -n 4"
    )


def test_an_unknown_mpi_gets_options_that_all_know():
    assert line(launch.Mpirun("/bin/mpirun", "", ""), 2, 2, root=True, given="-f hosts").endswith("-f hosts -n 2")


@pytest.mark.parametrize("given", ["--bind-to core", "--bind-to=none", "--map-by ppr:1:numa:pe=4", "--cpu-set 0,1"])
def test_binding_of_the_user_is_neither_overridden_nor_spread(given):
    words = line(OPENMPI_5, 2, 8, given=given)
    assert words.count("--bind-to") == given.count("--bind-to") and "MATEX_PLACEMENT" not in words and given in words


def test_variables_that_the_user_set_are_kept():
    words = line(OPENMPI_5, 2, 8, environment={"PYTHONHASHSEED": "7", "MATEX_PLACEMENT": "off"})
    assert "PYTHONHASHSEED" not in words and "MATEX_PLACEMENT" not in words
    words = line(OPENMPI_5, 2, 8, given="-x PYTHONHASHSEED=3")
    assert words.count("PYTHONHASHSEED") == 1
    full = {"OMPI_MCA_mpi_yield_when_idle": "0", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = line(OPENMPI_5, 2, 2, root=True, environment=full)
    assert "yield" not in words and "root" not in words


@pytest.mark.parametrize("given, environment", [("--host a:8,b:8", {}), ("", {"SLURM_JOB_ID": "1"})])
def test_with_several_hosts_nothing_follows_from_the_cores_here(given, environment):
    words = line(OPENMPI_5, 16, 2, given=given, environment={**environment, "MATEX_SCALING": "weak"})
    assert "OVERSUBSCRIBE" not in words and "yield" not in words
    assert "--prtemca oob_tcp_keepalive_time 5" in words, "else mpirun waits hours for a host that is lost"
    assert "-x MATEX_SCALING" in words, "Open MPI exports no variable to other hosts by itself"


def test_the_whole_command():
    words = launch.command(OPENMPI_5, ["-n", "2"], "/venv/bin/python", ["train.py", "--epochs", "3"])
    assert words == "/opt/bin/mpirun -n 2 /venv/bin/python -m matex_tf train.py --epochs 3".split()
