"""Fixtures that all tests share."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-way",
        action="store_true",
        help="run each script under every number of ranks, where the usual run takes one for each (many minutes more)",
    )


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No MATEX_* settings and no thread counts of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("MATEX_") or name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            monkeypatch.delenv(name)
    return monkeypatch
