"""What tests of jobs share. Each MPIJob that one makes is checked against its definition, without a server."""

from __future__ import annotations

import mpijobs
import pytest
from fake_commands import Fakes

from matex_tf.deploy import kubernetes


@pytest.fixture(scope="session", autouse=True)
def every_mpijob_is_checked():
    plain = kubernetes.format_job

    def format_job(*asked):
        text = plain(*asked)
        assert mpijobs.find_faults(text) == [], text
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes, "format_job", format_job)
        yield


@pytest.fixture
def nothing_of_this_user(tmp_path, monkeypatch):
    """An empty folder to work in, and no configuration file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """The commands of a scheduler, in front of all others."""
    (tmp_path / "bin").mkdir()
    found = Fakes(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:/usr/bin:/bin")
    return found
