"""What a rank writes: figures of its machine, lines that are whole, and what a full disk does to them."""

from __future__ import annotations

import errno
import json
import os
import time
import types

import pytest

from matex_tf.monitor import log as logs
from matex_tf.monitor import recording
from matex_tf.monitor.gpu import Gpus
from matex_tf.monitor.log import Log
from matex_tf.monitor.machine import Machine

STAT = "cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0: 1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
 veth1: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  ib0:70 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0
"""


def test_the_figures_are_those_of_the_files(tmp_path):
    files = {
        "proc/self/io": "rchar: 70000\nwchar: 5\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\n",
        "proc/self/statm": "900 300 20 1 0 200 0\n",
        "proc/stat": STAT,
        "proc/net/dev": NETWORK,
        "proc/meminfo": "MemTotal: 100 kB\nMemFree: 7 kB\nMemAvailable: 50 kB\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "2000\n",
        "sys/class/net/veth1/master": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = Machine(str(tmp_path)).take_sample()
    assert found.pop("cpu") > 0
    assert found == {
        "read": 70000,
        "mem": 300 * os.sysconf("SC_PAGE_SIZE"),
        "busy": round((100 + 20 + 30 + 6 + 7 + 8) / os.sysconf("SC_CLK_TCK"), 2),
        "free": 50 << 10, "rx": 1070 + 4000, "tx": 230 + 8000,
    }  # fmt: skip


def test_files_that_are_not_there_leave_their_figures_out(tmp_path):
    assert set(Machine(str(tmp_path)).take_sample()) == {"cpu"}


def test_this_machine_has_all_figures_and_its_memory_grows_with_what_it_holds():
    machine = Machine()
    before = machine.take_sample()
    held = b"x" * (64 << 20)
    after = machine.take_sample()
    assert set(before) == {"cpu", "read", "mem", "busy", "free", "rx", "tx"}
    assert after["mem"] - before["mem"] >= len(held) * 0.9 and after["cpu"] >= before["cpu"]


def test_what_a_process_has_read_counts_wherever_it_lay_and_its_samples_do_not(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    machine = Machine()
    found = [machine.take_sample()["read"] for _ in range(2)]
    for _ in range(2):  # the page cache has it the second time
        (tmp_path / "file").read_bytes()
        found.append(machine.take_sample()["read"])
    assert found[1] - found[0] < 4096
    assert [0 <= later - before - (1 << 20) < 4096 for before, later in zip(found[1:], found[2:])] == [True] * 2


class FakeDriver:
    """As pynvml answers, of three GPUs; the process may not use those in `closed`."""

    NVMLError = RuntimeError
    NVMLError_NoPermission = PermissionError
    UUIDS = ["GPU-5a00", "GPU-5b01", "GPU-6c02"]

    def __init__(self, models=("A", "A", "A"), closed=()):
        self.works, self.models, self.closed = True, models, closed

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.UUIDS)

    def nvmlDeviceGetHandleByIndex(self, number):
        if number in self.closed:
            raise self.NVMLError_NoPermission
        return number

    def nvmlDeviceGetHandleByUUID(self, name):
        assert name == "MIG-1"
        return 9

    def nvmlDeviceGetUUID(self, handle):
        return self.UUIDS[handle]

    def nvmlDeviceGetName(self, handle):
        return self.models[handle]

    def nvmlDeviceGetUtilizationRates(self, handle):
        if not self.works:
            raise self.NVMLError("lost")
        return types.SimpleNamespace(gpu=40 + 20 * handle)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(used=10**handle)


@pytest.mark.parametrize(
    "visible, closed, vram",
    [
        (None, (), 111),
        (None, (0,), 110),
        ("1", (), 10),
        ("1", (0,), 100),  # CUDA numbers those that the process may use
        ("GPU-6c02, 0", (), 101),
        ("GPU-5b,GPU-6", (), 110),
        ("MIG-1", (), 10**9),
        # CUDA ignores an invalid name, and all names after it.
        ("0,-1,2", (), 1),
        ("2,3,0", (), 100),
        ("2,GPU-5,0", (), 100),
        ("2,GPU-7,0", (), 100),
        ("1,,0", (), 10),
        ("x,0", (), None),
    ],
)
def test_gpus_are_those_that_the_process_sees(visible, closed, vram):
    driver, gpus = FakeDriver(closed=closed), Gpus()
    gpus.use_driver(driver, visible)
    assert gpus.take_sample().get("vram") == vram and not gpus.missing
    driver.works = False
    assert gpus.take_sample() == {}


def test_use_of_gpus_is_the_mean():
    gpus = Gpus()
    gpus.use_driver(FakeDriver(), "0,1")
    assert gpus.take_sample() == {"gpu": 50.0, "vram": 11}


@pytest.mark.parametrize(
    "visible, order, vram", [("1", "", None), ("1", "PCI_BUS_ID", 10), ("GPU-5b", "", 10), (None, "", 111)]
)
def test_numbers_of_different_gpus_are_read_only_if_cuda_numbers_them_as_the_driver(visible, order, vram):
    gpus = Gpus()
    gpus.use_driver(FakeDriver(models=("A", "B", "A")), visible, order)
    assert gpus.take_sample().get("vram") == vram
    assert ("CUDA_DEVICE_ORDER=PCI_BUS_ID" in gpus.missing) == (vram is None)


def test_a_file_has_one_writer(tmp_path):
    Log(tmp_path / "a", pytest.fail).write_line(up=1)
    with pytest.raises(FileExistsError):
        Log(tmp_path / "a", pytest.fail)
    Log(tmp_path / "a", pytest.fail, append=True).write_line(up=2)
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [line["up"] for line in lines] == [1, 2] and lines[0]["t"] <= lines[1]["t"] <= round(time.time(), 3)


@pytest.mark.parametrize("left", ["", '{"t":1}\n', '{"t":1}\n{"t":2,"a long line that is cut', '{"t":2,"a', "\0" * 99])
def test_a_line_follows_the_last_whole_line(tmp_path, left):
    (tmp_path / "a").write_text(left)
    Log(tmp_path / "a", pytest.fail, append=True).write_line(up=3)
    *kept, last = (tmp_path / "a").read_text().splitlines(keepends=True)
    assert "".join(kept) == left[: left.rfind("\n") + 1] and json.loads(last)["up"] == 3 and last.endswith("\n")


def test_a_full_disk_loses_whole_lines_and_raises_nothing(tmp_path, monkeypatch):
    reported = []
    log = Log(tmp_path / "a", reported.append)
    plain, room = os.pwrite, [1000, 5, -1, 1000]

    def write(file, text, at):
        left = room.pop(0)
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(file, text[:left], at)

    monkeypatch.setattr(logs.os, "pwrite", write)
    for number in range(4):
        log.write_line(up=number)
    assert [json.loads(line)["up"] for line in (tmp_path / "a").read_text().splitlines()] == [0, 3]
    assert log.lost == 2 and len(reported) == 1


def test_what_a_killed_rank_leaves_of_a_line_is_none(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"t":1,"up":1}\n{"t":2,"up":2}\n{"t":3,"u')
    assert [one["t"] for one in recording.read_samples(path, 100)] == [1, 2]
    assert [one["t"] for one in recording.read_last(path)] == [1, 2]
    path.write_text('{"t":1,"up":1}\n{"t":2,"u\0\0\n{"t":3,"up":3}\n')
    assert [one["t"] for one in recording.read_samples(path, 100)] == [1, 3]


@pytest.mark.parametrize("line", ["7", "[1]", "null", '{"up":2}', '{"t":"2"}', '{"t":2},{"t":3}', '{"t":2\n"up":3}'])
def test_lines_that_are_no_samples_are_left_out(tmp_path, line):
    path = tmp_path / "rank-0.jsonl"
    path.write_text(f'{{"t":1,"up":1}}\n{line}\n{{"t":4,"up":4}}\n')
    assert [one["t"] for one in recording.read_samples(path, 100)] == [1, 4]
