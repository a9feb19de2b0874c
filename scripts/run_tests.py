"""Runs ruff, mypy and pytest, and sums up.

The tests of collectives are themselves ranks: pytest runs them under mpirun (`tests/ops/test_collectives.py`). Where a
path among them is named, that is done here, for 1 to 4 ranks.

Started by scripts/test with the Python of the environment. Exit code 1 if anything fails or no test ran.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(ROOT / "scripts")]
import check_types  # noqa: E402

import launch  # noqa: E402 (the tests' own launcher)

COLLECTIVE = TESTS / "ops" / "mpi"
RANKS = (1, 2, 3, 4)
NOTHING_COLLECTED = 5
SERIAL_LIMIT, COLLECTIVE_LIMIT = 7200, 1200  # seconds, on busy cores


@dataclass
class Counts:
    """How many tests passed, failed and were skipped in a run, or in several added up."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def read_counts(report: Path) -> Counts:
    """The counts in a JUnit report; one failure if there is no report, because pytest did not live to write it."""
    if not report.exists():
        return Counts(failed=1)
    total = Counts()
    for suite in xml.parse(report).getroot().iter("testsuite"):
        tests, bad, skipped = (
            sum(int(suite.get(name, 0)) for name in names)
            for names in (("tests",), ("failures", "errors"), ("skipped",))
        )
        total += Counts(tests - bad - skipped, bad, skipped)
    return total


def is_path(argument: str) -> bool:
    """Whether a pytest argument names a file, a folder or a test in a file."""
    return not argument.startswith("-") and Path(argument.split("::")[0]).exists()


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Parts pytest's arguments into options, paths for the serial run and paths for the runs under mpirun."""
    options = [argument for argument in arguments if not is_path(argument)]
    paths = [argument for argument in arguments if is_path(argument)]
    if not paths:
        return options, [str(TESTS)], []
    collective = [path for path in paths if Path(path.split("::")[0]).resolve().is_relative_to(COLLECTIVE)]
    return options, [path for path in paths if path not in collective], collective


def run(command: Sequence[str], report: Path, limit: float, output: Path | None = None) -> Counts:
    """Runs pytest by `command`, whose output goes to the terminal as it comes or to a file, and reads its report.

    What it and its children leave in the folder for temporary files, as TensorFlow does, lies beside the report.
    """
    environment = {**os.environ, "TMPDIR": str(report.parent)}
    with contextlib.ExitStack() as files:
        to = files.enter_context(output.open("w")) if output else None
        errors = subprocess.STDOUT if output else None
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=to, stderr=errors)
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        # pytest ends what it has launched, and mpirun its ranks; killed, they would leave them behind.
        child.send_signal(signal.SIGINT)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        print(f"run_tests: no end within {limit} s: {' '.join(command)}", flush=True)
        return Counts(failed=1)
    counts = read_counts(report)
    if code not in (0, NOTHING_COLLECTED) and counts.failed == 0:
        counts.failed = 1
    return counts


def lint(types: bool) -> Counts:
    """Tests of ruff's rules and its format, and of `types`, where tests/test_layers.py may not run."""
    ways = (["check", "--quiet"], ["format", "--check"])
    codes = [subprocess.run([sys.executable, "-m", "ruff", *words, str(ROOT)]).returncode for words in ways]
    if types and check_types.has_types_of_numpy():
        codes.append(check_types.check_types())
    return Counts(passed=codes.count(0), failed=len(codes) - codes.count(0))


def distribution(options: Sequence[str], serial: Sequence[str]) -> list[str]:
    """Options of the run of pytest: where all tests are run, a file to each of some processes, as they are collected.

    Programs take all cores while they compute. They also wait, for each other and for files, which leaves two files at
    a time a tenth of two cores; a third takes it.
    """
    if serial != [str(TESTS)]:
        return []
    cores = max(1, min(os.cpu_count() or 1, 8))
    if "--quick" in options:
        return ["--dist=loadfile", "-n", str(cores)]
    return ["--computing", "--dist=loadfile", "--no-loadscope-reorder", "-n", "3"]


def pytest_command(report: Path, *words: str) -> list[str]:
    """Pytest with the usual options; not on the tests of collectives, which are ranks themselves."""
    options = [f"--ignore={COLLECTIVE}", f"--junitxml={report}", "--durations=10"]
    return [sys.executable, "-m", "pytest", *options, *words]


def run_waiting(folder: Path, options: Sequence[str]) -> tuple[Counts, str]:
    """Runs what mostly waits for a time to pass, whose cores the other runs have; how it went and what it said.

    No file has a test with the mark that does not name it: the others need not be collected.
    """
    folder.mkdir()
    report, output = folder / "report.xml", folder / "output"
    marked = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "mark.waits" in path.read_text()]
    counts = run(pytest_command(report, "--waiting", *options, *marked), report, SERIAL_LIMIT, output)
    return counts, output.read_text(errors="replace")


def main(arguments: Sequence[str]) -> int:
    """All runs, and the linters beside the first; prints one closing line like pytest's."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    started = time.monotonic()
    options, serial, collective = split_arguments(arguments)
    color = "--color=yes" if sys.stdout.isatty() else "--color=no"  # under mpirun every output is a terminal
    total = Counts()
    with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor() as beside:
        os.environ[launch.SHARED] = f"{os.getpid()}:{folder}"
        everything = not any(map(is_path, arguments))
        linting = beside.submit(lint, bool(options)) if everything else None
        waiting = None
        if everything and "--quick" not in options:
            waiting = beside.submit(run_waiting, Path(folder, "w"), options)
        if serial:
            report = Path(folder, "serial.xml")
            words = [*distribution(options, serial), *options, *serial]
            total += run(pytest_command(report, *words), report, SERIAL_LIMIT)
        total += linting.result() if linting else Counts()
        if waiting:
            counts, said = waiting.result()
            print(f"\n== beside them, what mostly waits\n{said}", flush=True)
            total += counts
        for ranks in RANKS if collective else ():
            print(f"\n== mpirun -n {ranks}: {' '.join(collective)}", flush=True)
            report = Path(folder, f"ranks{ranks}.xml")
            words = [report, "--with-mpi", "--timeout=120", "-q", color, *options, *collective]
            # Tests meet over MPI by themselves, and then read what rank 0 wrote.
            os.environ.update({**launch.WAITING, **launch.ALL_FILES})
            command = launch.command(ranks, TESTS / "one_voice.py", *words, env=os.environ, module=False)
            total += run(command, report, COLLECTIVE_LIMIT)
    words = [f"{count} {name}" for name, count in vars(total).items() if count]
    seconds = time.monotonic() - started
    print(f"\n===== {', '.join(words) or 'no tests ran'} in {seconds:.2f}s =====", flush=True)
    return 0 if total.passed and not total.failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
