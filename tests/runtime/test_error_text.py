"""What people read of an error that no line of the script explains."""

from __future__ import annotations

import os

import pytest

from matex_tf.errors import BuildError
from matex_tf.runtime import excepthook
from matex_tf.world import task_environment


def describe(error: Exception) -> str:
    try:
        raise error
    except Exception as raised:
        return excepthook.describe_error(raised, raised.__traceback__)


@pytest.fixture
def launched(monkeypatch):
    """A rank that has met the others."""
    monkeypatch.setattr(os, "environ", {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "1", "HOME": "/"})
    monkeypatch.setattr(task_environment, "taken", set())
    task_environment.keep_children_out()


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_who_asks_for_a_variable_of_the_launcher_is_told_what_to_ask(launched, name):
    assert name not in os.environ and "HOME" in os.environ
    assert "matex_tf.local_rank()" in describe(KeyError(name))


@pytest.mark.parametrize("error", [KeyError("PMI_RANK"), KeyError(), KeyError(3), ValueError("SLURM_LOCALID")])
def test_other_errors_are_not(launched, error):
    assert "matex_tf.local_rank()" not in describe(error)


def test_what_the_machine_lacks_has_no_traceback():
    text = describe(BuildError("no compiler: install one"))
    assert text.startswith("matex_tf: rank 0 of 1 on ") and text.endswith(": no compiler: install one\n")
