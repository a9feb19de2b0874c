"""Processes of several hosts need the engine at the same time: `start_storm.py FOLDER PROCESSES HOSTS SECONDS`.

Prints JSON: the number of compilations, and for each process the numbers of files opened and locks requested. A host is
simulated by its own folder for temporary files. The compiler takes SECONDS; with 0, the engine is already built.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import time
import types
from pathlib import Path

from matex_tf.ops import build, build_lock, compiler

COMPILER = """#!/bin/sh
[ "$1" = -show ] && exec {real} -show
cat > /dev/null; echo called >> {folder}/calls; sleep {seconds}
for last; do :; done
head -c 500000 /dev/zero > "$last"
"""


def count_accesses(folder: Path) -> collections.Counter[str]:
    """A counter of the files that this process opens and the locks that it requests, from now on."""
    counts: collections.Counter[str] = collections.Counter()
    real = build_lock.fcntl.flock

    def flock(file, how):
        path = os.readlink(f"/proc/self/fd/{file.fileno()}")
        counts["shared locks" if path.startswith(str(folder / "cache")) else "locks of a host"] += 1
        return real(file, how)

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            counts["sources" if arguments[0].startswith(str(build.SOURCE)) else "others"] += 1

    build_lock.fcntl = types.SimpleNamespace(**{**vars(build_lock.fcntl), "flock": flock})
    sys.addaudithook(note)
    return counts


def main(folder: Path, processes: int, hosts: int, seconds: float) -> None:
    made = folder / "mpicxx"
    made.write_text(COMPILER.format(real=compiler.find_compiler().path, folder=folder, seconds=seconds))
    made.chmod(0o755)
    os.environ |= {"MPICXX": str(made), "MATEX_CACHE_DIR": str(folder / "cache"), "MATEX_QUIET": "1"}
    mpi = compiler.describe_loaded_mpi()
    compiler.describe_loaded_mpi = lambda: mpi  # a rank has loaded it
    if not seconds:
        build.ensure_library(build.make_engine_plan())
    (folder / "counts").mkdir()
    begin = time.time() + 0.003 * processes
    for number in range(processes):
        if os.fork():
            continue
        try:
            host = folder / f"host{number % hosts}"
            host.mkdir(exist_ok=True)
            build.tempfile.tempdir = str(host)
            time.sleep(max(0.0, begin - time.time()))
            counts = count_accesses(folder)
            build.ensure_library(build.make_engine_plan())
            (folder / "counts" / str(number)).write_text(json.dumps(counts))
        finally:
            os._exit(0)
    for _ in range(processes):
        os.wait()
    counts = [json.loads(path.read_text()) for path in (folder / "counts").iterdir()]
    print(json.dumps({"compiled": (folder / "calls").read_text().count("called"), "counts": counts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
