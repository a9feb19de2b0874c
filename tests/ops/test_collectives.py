"""The tests in `mpi`, which are ranks themselves, under mpirun."""

from pathlib import Path

import pytest

import launch

FOLDER = Path(__file__).with_name("mpi")
ONE_VOICE = FOLDER.parent.parent / "one_voice.py"
ENGINE = [FOLDER / f"test_{name}.py" for name in ("compression", "engine", "mismatch", "record", "store")]
"""Tests of the engine, which does more where there are three ranks; the ops call it."""
OPS = sorted({*FOLDER.glob("test_*.py")} - {*ENGINE})


def run_ranks(ranks, folder, monkeypatch, *words, **settings):
    # They meet over MPI by themselves, and then read what rank 0 wrote.
    monkeypatch.chdir(FOLDER.parent.parent.parent)
    words = [folder / "report.xml", "--with-mpi", "--timeout=120", "-q", *words]
    launch.run(ranks, ONE_VOICE, *words, module=False, env={**launch.ALL_FILES, **settings}, timeout=1100).check()


@pytest.mark.timeout(1200)
def test_updates_of_an_mpi_that_is_given_addresses(tmp_path, monkeypatch):
    """On a CPU, where they are those of the host's memory."""
    files = [FOLDER / "test_gradients.py", FOLDER / "test_order.py", "-k", "not loops_and_branches"]
    run_ranks(2, tmp_path, monkeypatch, *files, MATEX_DEVICE_POINTERS="on")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "ranks, files",
    [
        pytest.param(3, ENGINE, id="engine-3"),
        pytest.param(2, OPS, id="ops-2"),
        pytest.param(2, ENGINE, id="engine-2", marks=pytest.mark.more),
        pytest.param(3, OPS, id="ops-3", marks=pytest.mark.more),
        *(pytest.param(ranks, [FOLDER], id=f"all-{ranks}", marks=pytest.mark.more) for ranks in (1, 4)),
    ],
)
def test_collectives(ranks, files, tmp_path, monkeypatch, pytestconfig):
    everything = ["--all"] if pytestconfig.getoption("--all") else []
    run_ranks(ranks, tmp_path, monkeypatch, *files, *everything)
