"""Fixtures that all tests share."""

from __future__ import annotations

import collections
import gc
import os
import signal

import hypothesis
import pytest

import launch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "16")  # simulated_ranks: a rank that waits takes one
# A third of what XLA takes for a function are optimizations of LLVM, which no test is about.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
# Programs are started as from a terminal: what runs in the background ignores its signals, and so does all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what starts no program: two minutes")
    parser.addoption("--computing", action="store_true", help="only what --waiting leaves out")
    parser.addoption("--waiting", action="store_true", help="only programs that mostly wait for a time to pass")
    parser.addoption(
        "--all",
        action="store_true",
        help="every test and script under every number of ranks, where the usual run takes some (many minutes more)",
    )


def pytest_configure(config: pytest.Config) -> None:
    examples = 300 if config.getoption("--all") else 40
    hypothesis.settings.register_profile("of this run", hypothesis.settings.default, max_examples=examples)
    hypothesis.settings.load_profile("of this run")
    if not config.getoption("--all"):
        gc.set_threshold(50_000)  # to look through TensorFlow's half million objects took a fifteenth of the time
    # Where files run at once, a rank that looks for another now and then takes no core from one that computes.
    if config.getoption("--computing"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What fails fastest first: modules that start no program; of two files that run at once, the longest."""
    if not config.getoption("--all"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("more")])
        items[:] = [item for item in items if not item.get_closest_marker("more")]
    launching = [item for item in items if _launches(item)]
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=launching)
        items[:] = [item for item in items if not _launches(item)]
        return
    if config.getoption("--computing") or config.getoption("--waiting"):
        waiting = config.getoption("--waiting")
        others = {item for item in items if bool(item.get_closest_marker("waits")) != waiting}
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
    limits: dict[str, float] = {}
    for item in launching:
        limits[item.module.__name__] = max(_limit(item), limits.get(item.module.__name__, 0.0))
    # Where files run at the same time, the longest come first: else one of them is left alone at the end.
    sign = -1 if hasattr(config, "workerinput") else 1
    items.sort(key=lambda item: (item.module.__name__ in limits, sign * limits.get(item.module.__name__, 0.0)))


def pytest_collection_finish() -> None:
    """What is there now counts as old."""
    gc.freeze()
    gc.unfreeze()


def _launches(item: pytest.Item) -> bool:
    """Whether it may start programs."""
    return hasattr(item.module, "launch") or hasattr(item.module, "subprocess")


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))


_spent: dict[str, float] = collections.defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Notes what each file costs: seconds of a core, which other work on the machine changes little."""
    before = launch.cpu_seconds()
    try:
        return (yield)
    finally:
        _spent[item.nodeid.partition("::")[0]] += launch.cpu_seconds() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["spent"] = dict(_spent)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Takes over what a process of pytest-xdist has noted; one that was killed has nothing to say."""
    for name, seconds in getattr(node, "workeroutput", {}).get("spent", {}).items():
        _spent[name] += seconds


def pytest_terminal_summary(terminalreporter) -> None:
    if not _spent:
        return
    costly = sorted(_spent.items(), key=lambda one: -one[1])[: max(10, len(_spent) // 8)]
    terminalreporter.section(f"{sum(_spent.values()):.0f} seconds of a core, of which the costliest files took")
    for name, seconds in costly:
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


@pytest.fixture(scope="session")
def which(pytestconfig: pytest.Config) -> str:
    """Which cases of a file are run, as it is told after its folder. Of the usual ones each runs lines of its own."""
    return "all" if pytestconfig.getoption("--all") else "usual"


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No MATEX_* settings and no thread counts of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("MATEX_") or name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            monkeypatch.delenv(name)
    return monkeypatch
