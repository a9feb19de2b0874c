"""What the input of training costs a rank."""

from __future__ import annotations

from pathlib import Path


def count_read_bytes() -> int | None:
    """Bytes that this process has read by system calls; None where the system does not count them."""
    try:
        return parse_read_bytes(Path("/proc/self/io").read_bytes())
    except OSError:
        return None


def parse_read_bytes(text: bytes) -> int:
    """Bytes that a process has read by system calls, by what its /proc/PID/io holds: `rchar`.

    These are of files, whether storage or the page cache has them, which `read_bytes` leaves out; also of pipes, and of
    sockets where MPI reads these as files. Not of files that are mapped into memory.
    """
    return int(text.split(None, 2)[1])
