"""What people read of an error that no line of the script explains."""

from __future__ import annotations

import os
from unittest import mock

import pytest

import matex_tf
from matex_tf.errors import BuildError
from matex_tf.runtime import tracebacks
from matex_tf.world import launcher_variables


def describe(error: Exception) -> str:
    try:
        raise error
    except Exception as raised:
        return tracebacks.describe_error(raised, raised.__traceback__)


VARIABLES = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "PMIX_SERVER_URI": "a"}


@pytest.fixture
def launched(monkeypatch):
    """A rank that has met the others."""
    monkeypatch.setattr(launcher_variables, "removed", set())
    monkeypatch.setattr(launcher_variables, "when_read", said := [])
    with mock.patch.dict(os.environ, VARIABLES):
        launcher_variables.keep_children_out()
        yield said
    os.environ._data = os.environb._data = dict(os.environ._data)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_who_asks_for_a_variable_of_the_launcher_is_told_what_to_ask(launched, name):
    assert name not in os.environ and "HOME" in os.environ
    assert "matex_tf.local_rank()" in describe(KeyError(name))


def test_every_function_that_is_named_is_there():
    assert {name for name in launcher_variables.FUNCTIONS.values() if callable(getattr(matex_tf, name))}


@pytest.mark.parametrize("error", [KeyError("PMI_RANK"), KeyError(), KeyError(3), ValueError("SLURM_LOCALID")])
def test_other_errors_are_not(launched, error):
    assert "matex_tf.local_rank()" not in describe(error)


READS = {
    "get": lambda name: os.environ.get(name, "0"),
    "getenv": lambda name: os.getenv(name, "0"),
    "in": lambda name: "1" if name in os.environ else "0",
    "bytes": lambda name: os.environb.get(name.encode(), b"0").decode(),
    "setdefault": lambda name: os.environ.setdefault(name, "0"),
}


@pytest.mark.parametrize("how", READS)
def test_a_default_in_place_of_a_variable_of_the_launcher_is_said(launched, how):
    """It would be the same on every rank, where the script means to know which one it is."""
    asked = []
    launched.append(asked.append)
    assert READS[how]("SLURM_LOCALID") == "0" and READS[how]("SLURM_NTASKS") == "0"
    assert ["matex_tf.local_rank()" in asked[0], "matex_tf.size()" in asked[-1]] == [True, True]


def test_what_is_no_question_for_a_place_is_not_said(launched):
    launched.append(pytest.fail)
    assert not VARIABLES.keys() & (os.environ.keys() | os.environ.copy().keys() | dict(os.environ).keys())
    assert os.environ.get("PMI_RANK") is None, "it was not the launcher's"
    assert os.environ.get("PMIX_SERVER_URI") is None and "HOME" in os.environ
    os.environ["SLURM_LOCALID"] = "3"
    assert os.environ.pop("SLURM_LOCALID") == "3", "the script's own"
    child = os.fork()
    if child == 0:
        os._exit(0 if os.environ.get("SLURM_NTASKS", "0") == "0" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_the_machine_lacks_has_no_traceback():
    text = describe(BuildError("no compiler: install one"))
    assert text.startswith("matex_tf: rank 0 of 1 on ") and text.endswith(": no compiler: install one\n")
