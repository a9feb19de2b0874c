"""The mpirun command line as a function of the MPI, the user and the cores."""

from __future__ import annotations

import os

import pytest

from matex_tf.launch import mpirun_command, probe
from matex_tf.world import mpirun_options

OPENMPI_5 = mpirun_command.Mpirun("/opt/bin/mpirun", mpirun_options.OPENMPI, "5.0.11")
OPENMPI_4 = mpirun_command.Mpirun("/opt/bin/mpirun", mpirun_options.OPENMPI, "4.1.6")
MPICH = mpirun_command.Mpirun("/opt/bin/mpirun", mpirun_options.MPICH, "4.3.0")
INTEL = mpirun_command.Mpirun("/opt/bin/mpirun", mpirun_options.INTEL, "2021.14")


@pytest.mark.parametrize(
    "text, family, version",
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/", mpirun_options.OPENMPI, "5.0.11"),
        ("mpirun (Open MPI) 4.1.4", mpirun_options.OPENMPI, "4.1.4"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost", mpirun_options.OPENMPI, "5.0.11"),
        (
            "HYDRA build details:\n    Version:                4.3.0\n    Release Date: 2025",
            mpirun_options.MPICH,
            "4.3.0",
        ),
        ("MPICH Version:      4.3.0", mpirun_options.MPICH, "4.3.0"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121", mpirun_options.INTEL, "2021.14"),
        ("something else", "", ""),
    ],
)
def test_the_mpi_is_recognised(text, family, version):
    assert (mpirun_command.find_family(text), mpirun_command.find_version(text)) == (family, version)


@pytest.mark.parametrize(
    "library, fits",
    [
        ("Open MPI v5.0.3, package: x", True),
        ("Open MPI v4.1.6, package: x", False),
        ("MPICH Version:      4.3.0", False),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", False),
        ("an MPI that nobody knows 4.2", True),
        ("", True),
    ],
)
def test_an_mpirun_is_of_one_family_and_major_version(library, fits):
    assert OPENMPI_5.fits(library) == fits
    assert mpirun_command.Mpirun("/opt/bin/mpirun", "", "").fits(library)
    assert mpirun_command.Mpirun("/opt/bin/mpirun", mpirun_options.OPENMPI, "").fits("Open MPI v4.1.6")


def test_mpirun_is_looked_for_beside_the_library_first():
    found = mpirun_command.list_candidates(
        "/apps/mpi/lib/libmpi.so.40", os.pathsep.join(["/usr/bin", "", "/apps/mpi/bin"]), "/venv"
    )
    assert found[0] == "/apps/mpi/bin/mpirun"
    assert found.index("/usr/bin/mpirun") < found.index("/venv/bin/mpirun")
    assert len(set(found)) == len(found)
    assert (
        "/usr/bin/mpirun" in mpirun_command.list_candidates("/usr/lib/x86_64-linux-gnu/libmpi.so.40", "", "/venv")[:3]
    )
    assert mpirun_command.list_candidates(None, "", "/venv") == ["/venv/bin/mpirun"]


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
        ("--am /etc/hosts train.py", "--am /etc/hosts", "train.py"),  # the file is no script
        ("--launch-agent /bin/sh train.py", "--launch-agent /bin/sh", "train.py"),
        ("-bootstrap-exec /bin/sh train.py", "-bootstrap-exec /bin/sh", "train.py"),
        ("--no-such-flag train.py", "--no-such-flag", "train.py"),
        ("--no-such-option value train.py", "--no-such-option value", "train.py"),
        ("--no-such-flag -- script", "--no-such-flag", "script"),
        ("--report-bindings", "--report-bindings", ""),
    ],
)  # fmt: skip
def test_options_end_where_the_script_begins(words, options, target):
    assert mpirun_options.split_options(words.split()) == (options.split(), target.split())


def line(mpirun, ranks, cores, root=False, given="", environment=None):
    return " ".join(mpirun_command.choose_options(mpirun, ranks, cores, root, given.split(), environment))


def test_open_mpi_5():
    assert line(OPENMPI_5, 4, 16) == (
        "--bind-to none --map-by :OVERSUBSCRIBE -x PYTHONHASHSEED=0 -x GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
        " -x MATEX_PLACEMENT=spread -n 4"
    )
    assert "--allow-run-as-root" in line(OPENMPI_5, 4, 16, root=True)
    assert "--mca mpi_yield_when_idle 1" in line(OPENMPI_5, 16, 16)


def test_open_mpi_4_has_another_word_for_more_ranks_than_cores():
    assert line(OPENMPI_4, 4, 2).startswith("--bind-to none --oversubscribe --mca mpi_yield_when_idle 1 ")


def test_mpich_and_intel():
    variables = "-genv PYTHONHASHSEED 0 -genv GLIBC_TUNABLES glibc.malloc.hugetlb=1 -genv MATEX_PLACEMENT spread"
    assert line(MPICH, 4, 2, root=True) == f"-bind-to none {variables} -n 4"
    assert line(INTEL, 4, 2) == f"{variables} -genv I_MPI_PIN 0 -genv I_MPI_THREAD_YIELD 2 -n 4"


def test_an_unknown_mpi_gets_options_that_all_know():
    assert line(mpirun_command.Mpirun("/bin/mpirun", "", ""), 2, 2, root=True, given="-f hosts").endswith(
        "-f hosts -n 2"
    )


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
    assert "I_MPI" not in line(INTEL, 4, 2, environment={"I_MPI_PIN": "1", "I_MPI_THREAD_YIELD": "0"})
    assert line(INTEL, 4, 2, given="-genv I_MPI_PIN 1").count("I_MPI_PIN") == 1


@pytest.mark.parametrize(
    "given, environment",
    [
        ("-x GLIBC_TUNABLES=a", {}),
        ("-x MATEX_LARGE_PAGES=0", {}),
        ("-x MATEX_LARGE_PAGES=1", {}),
        ("", {"GLIBC_TUNABLES": ""}),
        ("", {"MATEX_LARGE_PAGES": "0"}),
        ("", {"MATEX_DISABLE": "1"}),
    ],
)
def test_large_pages_are_left_to_the_user_and_to_ranks(given, environment):
    assert "hugetlb" not in line(OPENMPI_5, 2, 8, given=given, environment=environment)


def test_a_process_alone_has_the_pages_that_it_has_without_us():
    assert "hugetlb" not in line(OPENMPI_5, 1, 8)


@pytest.mark.parametrize(
    "given, environment", [("--host a:8,b:8", {}), ("", {"SLURM_JOB_ID": "1"}), ("", {"PE_HOSTFILE": "a"})]
)
def test_with_several_hosts_nothing_follows_from_the_cores_here(given, environment):
    words = line(OPENMPI_5, 16, 2, given=given, environment={**environment, "MATEX_SCALING": "weak"})
    assert "OVERSUBSCRIBE" not in words and "yield" not in words
    assert "--prtemca oob_tcp_keepalive_time 5" in words, "else mpirun waits hours for a host that is lost"
    assert "-x MATEX_SCALING" in words, "Open MPI exports no variable to other hosts by itself"
    given = f"{given} -x MATEX_SCALING=weak"
    words = line(OPENMPI_5, 16, 2, given=given, environment={**environment, "MATEX_SCALING": "strong"})
    assert words.count("MATEX_SCALING") == 1, "of two values Open MPI takes the first"


@pytest.mark.parametrize("mpirun", [OPENMPI_5, OPENMPI_4])
def test_ranks_on_one_host_do_without_the_network(mpirun):
    def ways(given="", environment=None):
        words = mpirun_command.choose_options(mpirun, 2, 8, False, given.split(), environment, by_memory=True)
        return " ".join(words).count("--mca btl ^tcp,ofi ")

    assert ways() == ways("--tag-output -x A=1") == ways("", {"OMPI_MCA_mpi_yield_when_idle": "1"}) == 1
    for given in ("--mca btl tcp,self", "--mca pml ucx", "--mca btl_tcp_if_include eth0", "-x OMPI_MCA_btl=self,tcp",
                  "--tune file", "--am=file", "--host a:1,b:1"):  # fmt: skip
        assert ways(given) == 0, given
    for name in ("OMPI_MCA_btl", "OMPI_MCA_btl_base_verbose", "OMPI_MCA_pml", "OMPI_MCA_mca_base_param_files",
                 "SLURM_JOB_ID"):  # fmt: skip
        assert ways("", {name: "1"}) == 0, name
    assert "btl" not in line(mpirun, 2, 8)
    assert not {"btl", "^tcp,ofi"} & {*mpirun_command.choose_options(MPICH, 2, 8, False, by_memory=True)}


def test_files_of_open_mpi_may_say_how_ranks_reach_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    mpirun = mpirun_command.Mpirun(str(tmp_path / "bin" / "mpirun"), mpirun_options.OPENMPI, "5.0.11")
    assert probe.has_memory_for(1, mpirun, str(tmp_path))
    assert not probe.has_memory_for(1 << 40, mpirun, str(tmp_path))
    assert not probe.has_memory_for(1, mpirun, str(tmp_path / "none"))
    for name in (".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("# btl = self\nhwloc_base_binding_policy=core\n")
        assert probe.has_memory_for(1, mpirun, str(tmp_path))
        (tmp_path / name).write_text("  btl = self,tcp\n")
        assert not probe.has_memory_for(1, mpirun, str(tmp_path))
        (tmp_path / name).unlink()
