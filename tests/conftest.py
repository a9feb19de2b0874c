"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Programs are started as from a terminal: what runs in the background ignores its signals, and so does all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what starts no program: some three minutes")
    parser.addoption(
        "--all",
        action="store_true",
        help="every test and script under every number of ranks, where the usual run takes some (many minutes more)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What fails fastest first: modules that start no program, then those whose tests may take least."""
    if not config.getoption("--all"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("more")])
        items[:] = [item for item in items if not item.get_closest_marker("more")]
    launching = [item for item in items if _launches(item)]
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=launching)
        items[:] = [item for item in items if not _launches(item)]
        return
    limits: dict[str, float] = {}
    for item in launching:
        limits[item.module.__name__] = max(_limit(item), limits.get(item.module.__name__, 0.0))
    items.sort(key=lambda item: limits.get(item.module.__name__, 0.0))


def _launches(item: pytest.Item) -> bool:
    """Whether it may start programs."""
    return hasattr(item.module, "launch") or hasattr(item.module, "subprocess")


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No MATEX_* settings and no thread counts of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("MATEX_") or name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            monkeypatch.delenv(name)
    return monkeypatch
