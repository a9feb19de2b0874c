"""What happens when a host is lost or its cable is cut in training: see docs/reliability.md.

    sudo python benchmarks/faults_hosts.py [--hosts 3] [--times 1] [--only cut] [--launcher matex]

Each line starts a fit with one rank on each host, loses one host in the way named, and looks at exit code, at the first
line that names the host, and how many seconds later no process of the run was left, on that host and on the others. A
host that loses its power is to the others one whose packets are dropped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from network import Hosts

WORKER = Path(__file__).resolve().with_name("faults_worker.py")
WAYS = {"cable cut": Hosts.cut, "packets dropped": Hosts.drop}
START, PATIENCE = 400, 120


def inject(count: int, way: str, host: str, launcher: str) -> tuple[str, str]:
    """One run with one loss: the line of the table, and what was printed."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, Hosts(count, "1gbit", folder) as hosts:
        notes, site, cache = (Path(folder, name) for name in ("notes", "site", "cache"))
        for each in (notes, site):
            each.mkdir()
        (site / "sitecustomize.py").write_text(
            f"import sys\nsys.path.append({str(WORKER.parent)!r})\nimport faults_worker\nfaults_worker.arm()\n"
        )
        told = {"FAULT": "host::", "FAULT_NOTES": str(notes), "PYTHONPATH": str(site), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment = Hosts.environment({"MATEX_CACHE_DIR": os.environ.get("MATEX_CACHE_DIR", str(cache)), **told})
        exported = [word for name in (*told, "MATEX_CACHE_DIR") for word in ("-x", name)]
        words = [*hosts.options(), *exported, "-n", str(count)]
        start = [sys.executable, "-m", "matex_tf.launch.cli", "run"]
        end = [str(WORKER), folder]
        if launcher == "mpirun":
            start, end = ["mpirun", "--allow-run-as-root"], [sys.executable, "-m", "matex_tf", *end]
        child = subprocess.Popen(
            [*hosts.enter("h1"), *start, *words, *end], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        printed: list[tuple[float, str]] = []
        reader = threading.Thread(
            target=lambda: printed.extend((time.time(), line) for line in child.stdout), daemon=True
        )
        reader.start()
        wait_for(lambda: len(list(notes.glob("ready-*"))) == count or child.poll() is not None, START)
        processes = {path.name.partition("-")[2] for path in notes.glob("process-*")}
        there = {pid for pid in processes if hosts.has(host, pid)}
        lost = time.time()
        WAYS[way](hosts, host)
        ended = [
            wait_for(lambda: child.poll() is not None, PATIENCE),
            wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes - there), PATIENCE),
            wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in there), PATIENCE),
        ]
        seconds = [f"{when - lost:.0f}" if when else f"more than {PATIENCE}" for when in ended]
        code = child.poll()
        if code is None:
            child.kill()
        reader.join(10)
        named = [when for when, line in printed if when >= lost and re.search(rf"\b{host}\b", line)]
        message = f"{named[0] - lost:.0f}" if named else "none"
        line = f"| {way} | {host} of {count} | {launcher} | {code} | {message} | {' | '.join(seconds)} |"
        return line, "".join(line for _, line in printed)


def wait_for(condition, seconds: float) -> float | None:
    """When `condition` came true, looking often; None if it did not."""
    limit = time.time() + seconds
    while time.time() < limit:
        if condition():
            return time.time()
        time.sleep(0.05)
    return None


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--hosts", type=int, default=3)
    asked.add_argument("--times", type=int, default=1)
    asked.add_argument("--only", default="", help="ways that have this in their name")
    asked.add_argument("--launcher", choices=("matex run", "mpirun"), default="matex run")
    options = asked.parse_args()
    print(
        "| way | host | started by | exit code | host named after, s | run over, s | others gone, s | its own gone, s |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    last = f"h{options.hosts}"
    for _ in range(options.times):
        for way in WAYS:
            for host in (last, "h1"):
                if options.only in way:
                    line, printed = inject(options.hosts, way, host, options.launcher)
                    print(line, flush=True)
                    print(printed, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
