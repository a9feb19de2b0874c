"""Samples the use of resources by this process and its host. Reads files of /proc and /sys, which stay open: a sample
takes about 25 us.

If a file is missing, the numbers from it are omitted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from matex_tf.observe.input_costs import parse_read_bytes

_MAX_BYTES = 1 << 16
_TICKS = os.sysconf("SC_CLK_TCK")  # units of /proc/stat in a second
_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
_AVAILABLE = b"MemAvailable:"
_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev
_WORD = 4  # bytes for each unit of InfiniBand's counters


class Machine:
    """Open files below `root`, the folder of proc/ and sys/."""

    def __init__(self, root: str = "/"):
        self._memory = _open_file(root, "proc/self/statm")
        self._reading = _open_file(root, "proc/self/io")
        self._bytes_of_samples = 0  # bytes read by the samples themselves
        self._cores = _open_file(root, "proc/stat")
        self._network = _open_file(root, "proc/net/dev")
        self._available = _open_file(root, "proc/meminfo")
        # The members of a bridge or bond are excluded: their traffic is counted at the bridge or bond.
        members = Path(root, "sys/class/net").glob("*/master")
        self._excluded_devices = {b"lo", *(os.fsencode(path.parent.name) for path in members)}
        ports = Path(root, "sys/class/infiniband")
        # These paths are absolute: `_open_file` does not put `root` before them again.
        self._received = [_open_file(root, str(path)) for path in ports.glob("*/ports/*/counters/port_rcv_data")]
        self._sent = [_open_file(root, str(path)) for path in ports.glob("*/ports/*/counters/port_xmit_data")]

    def take_sample(self) -> dict[str, float]:
        """The current sample. Of this process: `cpu` (seconds of all threads so far), `read` (bytes read by system
        calls so far, without the samples' own) and `mem` (resident bytes). Of its host: `busy` (seconds of busy cores
        so far), `free` (available bytes), `rx` and `tx` (bytes so far).
        """
        sample: dict[str, float] = {"cpu": round(time.process_time(), 3)}
        own_bytes = self._bytes_of_samples  # of earlier reads: proc/self/io does not count the read that returns it
        if text := self._read_file(self._reading):
            sample["read"] = parse_read_bytes(text) - own_bytes
        if text := self._read_file(self._memory):
            sample["mem"] = int(text.split(None, 2)[1]) * _PAGE  # the second number: resident pages
        if text := self._read_file(self._cores):
            sample["busy"] = round(parse_busy_seconds(text), 2)
        text = self._read_file(self._available)
        if (position := text.find(_AVAILABLE)) >= 0:
            sample["free"] = int(text[position + len(_AVAILABLE) :].split(None, 1)[0]) << 10
        if text := self._read_file(self._network):
            received = sent = 0
            for line in text.split(b"\n")[2:-1]:  # two lines are headings
                name, _, columns_text = line.partition(b":")
                if name.lstrip() not in self._excluded_devices:
                    columns = columns_text.split(None, _SENT + 1)
                    received += int(columns[_RECEIVED])
                    sent += int(columns[_SENT])
            sample["rx"] = received + _WORD * self._sum_counters(self._received)
            sample["tx"] = sent + _WORD * self._sum_counters(self._sent)
        return sample

    def _read_file(self, descriptor: int) -> bytes:
        try:
            text = os.pread(descriptor, _MAX_BYTES, 0) if descriptor >= 0 else b""
        except OSError:
            text = b""
        self._bytes_of_samples += len(text)
        return text

    def _sum_counters(self, descriptors: Sequence[int]) -> int:
        return sum(int(self._read_file(descriptor).strip() or 0) for descriptor in descriptors)


def parse_busy_seconds(text: bytes) -> float:
    """The seconds that all cores of a host have been busy, from the text of /proc/stat."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, text[: text.index(b"\n")].split()[1:])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _open_file(root: str, path: str) -> int:
    try:
        return os.open(os.path.join(root, path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
