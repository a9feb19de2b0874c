"""Ranks open the folder of a run's state: one run at a time, from the newest state of all hosts."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from matex_tf import errors
from matex_tf.resilience import async_writer, random_state, run_state, serialization, state_files

ENDS, SCRIPT, OTHER_RUN = {0: "end 0", 1: "end 1"}, "script", 7


def make_run(path):
    run = object.__new__(run_state.Run)
    run.path, run.script, run.writer, run._newest = str(path), SCRIPT, None, None
    return run


class Ranks:
    """Ranks in threads, each the only one of its host. `paths`: of the folder of the state on each host."""

    def __init__(self, monkeypatch, paths):
        self.paths, self.barrier, self.values = paths, threading.Barrier(len(paths), timeout=60), [None] * len(paths)
        self.here = threading.local()
        self.said = []
        monkeypatch.setattr(run_state, "objects", self)
        monkeypatch.setattr(run_state, "world", SimpleNamespace(get_world=lambda: self.here.world))
        monkeypatch.setattr(run_state.notes, "print_note", self.said.append)
        monkeypatch.setattr(random_state, "restore_states", lambda states: None)

    def allgather(self, value, what):
        self.values[self.here.world.rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found

    def broadcast(self, value, what, root=0):
        return self.allgather(value, what)[root]

    def open_folders(self):
        """The run of each rank, with the saved states of calls 0 to 2 in `loaded`."""

        def open_folder(rank):
            hosts = [f"host{number}" for number in range(len(self.paths))]
            self.here.world = SimpleNamespace(rank=rank, local_rank=0, hosts=hosts)
            run = make_run(self.paths[rank])
            run._open_folder()
            run.loaded = [run.load_state(fit) for fit in range(3)]
            if rank == 0:
                os.close(run._lock)
            return run

        with ThreadPoolExecutor(len(self.paths)) as pool:
            return list(pool.map(open_folder, range(len(self.paths))))


def fill(path, ends, state, fit, entropy=OTHER_RUN - 1, script=SCRIPT):
    """Write the folder of a host: the beginning of a run, ends of calls, and a state of call `fit`."""
    folder = state_files.Folder(str(path))
    contents = [("end", number, text) for number, text in ends.items()]
    contents.append(("state", state, {"fit": fit, "weights": np.full(3, float(state))}))
    for kind, number, content in contents:
        folder.write_file(kind, number, serialization.pack_value(content))
    packed = serialization.pack_value({"script": script, "entropy": entropy, "random": None})
    state_files.write_state(folder.locate_file(state_files.BEGIN), packed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"ends": {}, "state": 9, "fit": 0}, id="an older state with a larger number"),
        pytest.param({"ends": {0: "old"}, "state": 3, "fit": 1, "entropy": OTHER_RUN}, id="a state of another run"),
        pytest.param({"ends": ENDS, "state": 9, "fit": 2, "script": "other"}, id="a state of another script"),
    ],
)
def test_a_run_resumes_from_the_newest_state_of_all_hosts(tmp_path, monkeypatch, first):
    paths = [tmp_path / name for name in "abc"]
    if first is not None:
        fill(paths[0], **first)
    fill(paths[1], {0: "end 0"}, 4, 1)
    fill(paths[2], ENDS, 5, 2)
    for paths_now in (paths, paths[:1]):  # the first host then has all that it needs
        ranks = Ranks(monkeypatch, paths_now)
        runs = ranks.open_folders()
        for run in runs:
            assert run.entropy == OTHER_RUN - 1 and run.ended_fits == set(ENDS) and run.saved_fit == 2
            assert run.state_number == 5 and run.loaded[:2] == list(ENDS.values())
            assert np.array_equal(run.loaded[2]["weights"], np.full(3, 5.0))
        assert [run.writer is not None for run in runs] == [rank == 0 for rank in range(len(runs))]
        assert state_files.Folder(str(paths[0])).list_numbers("state") == [5]
        assert any("host2" in text for text in ranks.said) == (len(runs) > 1), ranks.said


def test_a_state_in_a_folder_that_hosts_share_is_not_copied(tmp_path, monkeypatch):
    fill(tmp_path / "a", ENDS, 5, 2)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    monkeypatch.setattr(run_state.Run, "_copy_state", lambda *args: pytest.fail("a copy"))
    ranks = Ranks(monkeypatch, [tmp_path / "a", tmp_path / "b"])
    assert [run.saved_fit for run in ranks.open_folders()] == [2, 2] and not ranks.said


def test_a_folder_that_one_host_cannot_use_ends_all_ranks(tmp_path, monkeypatch):
    fill(tmp_path / "b", ENDS, 5, 2)
    (tmp_path / "b").chmod(0o777)
    ranks = Ranks(monkeypatch, [tmp_path / "a", tmp_path / "b"])
    with pytest.raises(errors.SetupError, match=r"rank 1 \(host1\).*can write"):
        ranks.open_folders()


def test_a_folder_of_another_run_is_not_used_after_a_loss(tmp_path, monkeypatch):
    fill(tmp_path / "a", ENDS, 5, 2)
    held = state_files.Folder(str(tmp_path / "a")).hold_lock()
    assert held is not None
    monkeypatch.setattr(run_state.time, "sleep", lambda seconds: None)
    ranks = Ranks(monkeypatch, [tmp_path / "a"])
    ranks.here.world = SimpleNamespace(rank=0, local_rank=0, hosts=["host0"])
    run = make_run(tmp_path / "a")
    calls = []

    def lose(value, what, *args):
        calls.append(what)
        raise ConnectionError("a rank is lost")

    with monkeypatch.context() as patched:
        patched.setattr(run_state, "objects", SimpleNamespace(allgather=lose, broadcast=lose))
        with pytest.raises(ConnectionError):
            run._open_folder()
    with pytest.raises(errors.SetupError, match="another run"):
        run._open_folder()
    assert len(calls) == 1 and run.writer is None
    os.close(held)


@pytest.mark.parametrize("has_state", [True, False])
def test_a_new_first_rank_resumes_only_from_the_state_that_all_ranks_expect(tmp_path, monkeypatch, has_state):
    fill(tmp_path / "a", ENDS, 5, 2)
    if not has_state:
        fill(tmp_path / "b", {0: "end 0"}, 4, 1)
    run = make_run(tmp_path / ("a" if has_state else "b"))
    run.fits, run.saved_fit, run.state_number = 0, 2, 5
    if has_state:
        run._handle_loss(True)
        assert run._newest["fit"] == 2 and isinstance(run.writer, async_writer.Writer)
        os.close(run._lock)
    else:
        with pytest.raises(errors.LostRankError, match="lacks the state"):
            run._handle_loss(True)
        os.close(run._lock)
