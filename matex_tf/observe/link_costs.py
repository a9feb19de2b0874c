"""Stores the measured cost of transfers between hosts, for each group of hosts, in the cache folder.

The engine, the C++ library that executes collectives, measures the cost in a run. `matex info` prints it, and later
runs and `matex plan` estimate with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matex_tf.ops import cache, records
from matex_tf.runtime import atomic, notes, real_files, shutdown
from matex_tf.world import world

SHOWN = 5  # links that `matex info` prints
PROBED = (1 << 10, 1 << 20)
"""Bytes of the sums that measure a link (ops/src/engine/update/link_probe.cc)."""


@dataclass
class Link:
    """The measured cost of a transfer between the ranks on some hosts; `str` of it is a line of `matex info`."""

    hosts: dict[str, int]  # the number of ranks, by host
    start_up: float  # seconds to start a transfer
    byte: float  # seconds for each byte
    disturbed: bool  # by other work on the cores or the network
    when: float  # seconds since 1970

    def __str__(self) -> str:
        first_hosts = list(self.hosts.items())[:3]
        ranks_text = ", ".join(f"{ranks} rank{'s' if ranks > 1 else ''} on {host}" for host, ranks in first_hosts)
        more_text = f" and {len(self.hosts) - 3} more hosts" if len(self.hosts) > 3 else ""
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.when))
        if self.disturbed:
            return (
                f"{ranks_text}{more_text}: the measurement of {day} was disturbed by other work on the cores or the "
                "network, so that gradients kept their initial buckets"
            )
        return (
            f"{ranks_text}{more_text}: {self.start_up * 1e6:.1f} us a transfer and {1e-9 / self.byte:.3g} GB/s ({day})"
        )


def start_links() -> None:
    """Store the engine's measurement at the end of this run."""
    if world.get_world().rank == 0:
        shutdown.at_end.append(_store_measurement)


def _store_measurement() -> None:
    measurement = records.get_last_measurement()  # (start_up, byte, disturbed)
    if measurement is None:
        return
    link = Link(dict(Counter(world.get_world().hosts)), *measurement, time.time())
    try:
        path = str(_locate_file(link.hosts))
        with real_files.use_real_files(), atomic.write_beside(path, make_folder=True) as temporary_path:
            Path(temporary_path).write_text(json.dumps(asdict(link)))
    except OSError as error:
        notes.print_note(f"the measured cost of transfers could not be stored for `matex info`: {error}")


def list_links() -> list[Link]:
    """The stored links, newest first."""
    links = map(_read_link, _get_folder().glob("*.json"))
    return sorted((link for link in links if link is not None), key=lambda link: -link.when)


def find_link(hosts: Sequence[str]) -> Link | None:
    """The stored link for ranks on these hosts (one entry for each rank), unless its measurement was disturbed."""
    link = _read_link(_locate_file(dict(Counter(hosts))))
    return link if link is not None and not link.disturbed and link.byte > 0 else None


def _read_link(path: Path) -> Link | None:
    """The link in a file; None if the file is missing, incomplete, or of another version."""
    with real_files.use_real_files(), contextlib.suppress(OSError, ValueError, TypeError):
        return Link(**json.loads(path.read_text()))
    return None


def _locate_file(hosts: dict[str, int]) -> Path:
    return _get_folder() / f"{hashlib.blake2b(json.dumps(hosts).encode(), digest_size=8).hexdigest()}.json"


def _get_folder() -> Path:
    return cache.find_cache_folder() / "links"
