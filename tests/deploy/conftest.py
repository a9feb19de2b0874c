"""Each MPIJob that a test of this folder makes is checked against the definition of MPIJobs; no server is needed."""

from __future__ import annotations

import mpijobs
import pytest

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
