"""Which compiler builds the ops: the one of the MPI that mpi4py loads."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from matex_tf.ops import compiler

LIBRARY = """
#include <cstring>
extern "C" int MPI_Get_library_version(char* text, int* length) {
  std::strcpy(text, "Other MPI v1.2.3, made for a test\\nsecond line");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The mpicxx of another MPI: its library says so."""
    lib, bin = tmp_path / "other" / "lib", tmp_path / "other" / "bin"
    lib.mkdir(parents=True)
    bin.mkdir()
    real = compiler.find_compiler().path
    subprocess.run(
        [real, "-x", "c++", "-", "-shared", "-fPIC", "-o", str(lib / "libmpi.so.99")],
        input=LIBRARY,
        text=True,
        check=True,
    )
    (lib / "libmpi.so").write_text("INPUT(libmpi.so.99)\n")
    path = bin / "mpicxx"
    path.write_text(f"#!/bin/sh\necho c++ -I{tmp_path} -L{lib} -lmpi\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_mpi_of_a_compiler_is_what_its_library_says(other):
    assert compiler._describe_linked_mpi(str(other)) == "Other MPI v1.2.3, made for a test\nsecond line"
    assert compiler.shorten_version(compiler._describe_linked_mpi(str(other))) == "Other MPI v1.2.3, made for a test"


def test_own_compiler_is_of_the_mpi_that_mpi4py_loads():
    found = compiler.find_compiler()
    assert found.mpi == compiler.describe_loaded_mpi() != ""


def test_first_on_path_is_passed_over_if_of_another_mpi(other, monkeypatch):
    usual = compiler.find_compiler()
    monkeypatch.delenv("MPICXX", raising=False)
    monkeypatch.setenv("PATH", str(other.parent), prepend=":")
    assert compiler.find_compiler() == usual


def test_one_that_cannot_be_asked_comes_last(tmp_path, monkeypatch):
    usual = compiler.find_compiler()
    silent = tmp_path / "mpicxx"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.delenv("MPICXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert compiler.find_compiler() == usual
    monkeypatch.setattr(compiler, "_list_candidates", lambda: iter([str(silent)]))
    assert compiler.find_compiler() == compiler.Compiler(str(silent), "")


def test_chosen_compiler_of_another_mpi(other, monkeypatch):
    usual = compiler.find_compiler()
    monkeypatch.setenv("MPICXX", str(other))
    with pytest.raises(compiler.CompilerError) as caught:
        compiler.find_compiler()
    assert "Other MPI v1.2.3" in str(caught.value) and compiler.shorten_version(usual.mpi) in str(caught.value)


def test_mpicxx_on_path_comes_before_that_of_the_package(tmp_path, monkeypatch):
    usual = compiler.find_compiler()
    wrapper = tmp_path / "mpicxx"
    wrapper.write_text(f'#!/bin/sh\nexec {usual.path} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.delenv("MPICXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert compiler.find_compiler() == compiler.Compiler(str(wrapper), usual.mpi)


@pytest.mark.parametrize(
    ("said", "short"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11", "Open MPI v5.0.11"),
        ("MPICH Version:\t4.2.1\nMPICH Release date:\tWed", "MPICH Version: 4.2.1"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS\n", "Intel(R) MPI Library 2021.11 for Linux* OS"),
        ("", "an unknown MPI"),
    ],
)
def test_short(said, short):
    assert compiler.shorten_version(said) == short
