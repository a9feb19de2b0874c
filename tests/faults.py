"""Faults that the tests must notice: each is a change of one place in the product, with the test that fails by it.

`python tests/faults.py [NAME ...]` puts each into a copy of the checkout and runs its test there; the exit code is 1
where a test passes in spite of its fault, or fails without one. `scripts/test --all` does the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMENESS = "tests/sameness/test_sameness.py::test_a_program_gives_on_ranks_what_it_gives_alone"


@dataclass(frozen=True)
class Fault:
    """In `file`, `right` becomes `wrong`; `test` (a file of tests or one in it) must fail then."""

    file: str
    right: str
    wrong: str
    test: str


FAULTS = {
    "what was printed when rank 0 was lost is printed by nobody": Fault(
        "matex_tf/resilience/elastic.py",
        "        terminal.print_text()\n",
        "        terminal.forget_text(), terminal.print_text()\n",
        "tests/resilience/test_lost_phases.py",
    ),
    "what a lost rank had added is added again": Fault(
        "ops/src/engine/store/store.cc",
        "inherited_[part] = is_begun ? TableOf(from)[part].load() : 0;",
        "inherited_[part] = 0;",
        "tests/apart/test_turns.py",
    ),
    "a rank gets the sum of another's part": Fault(
        "ops/src/engine/sums/ring.cc",
        "begin, {-1, rounds, 0}, type",
        "begin, {0, rounds, 0}, type",
        "tests/ops/engine/test_stress.py",
    ),
    "a rank writes a block that the other has not read": Fault(
        "ops/src/engine/sums/shared_memory.cc",
        "blocks_.written - std::min(blocks_.read, seen.read) < slots",
        "true",
        "tests/ops/engine/test_stress.py",
    ),
    "ranks at one place are told one by one": Fault(
        "ops/src/engine/sequence/reports.cc",
        "if (same == end) *end++ = more;",
        "if (same != nullptr) *end++ = more;",
        "tests/ops/test_collectives.py",
    ),
    "ranks of several nodes meet in memory": Fault(
        "ops/src/engine/sequence/rendezvous.cc",
        "all_use_auto && lowest_node == highest_node;",
        "all_use_auto;",
        "tests/ops/engine/test_growth.py",
    ),
    "new weights are written where the script still reads the old ones": Fault(
        "ops/src/tensorflow/weights/pieces.cc",
        "const bool can_stay = whole->RefCountIsOne();",
        "const bool can_stay = true;",
        "tests/servers/test_sharded.py",
    ),
    "a weight is read before it has come": Fault(
        "ops/src/tensorflow/weights/pieces.cc",
        "      const std::vector<void*> values = pulled->Lock();\n      done();",
        "      done();\n      const std::vector<void*> values = pulled->Lock();",
        "tests/servers/test_sharded.py",
    ),
    "a rank that computes is said to wait": Fault(
        "ops/src/engine/sequence/wait_state.cc",
        "  waiters.blocked_since = Clock::now();\n}",
        "}",
        "tests/ops/engine/test_stress.py",
    ),
    "rows of a batch are left out": Fault(
        "matex_tf/sharding/slice_bounds.py",
        "(rank + 1) * base + _take_minimum(rank + 1, extra)",
        "(rank + 1) * base + _take_minimum(rank, extra)",
        "tests/sharding/test_slice_bounds.py",
    ),
    "a rank without rows counts the row that it computes": Fault(
        "matex_tf/steps/exchanger.py",
        "ops.make_weight(batch_slice.contributes, batch_slice.total",
        "ops.make_weight(True, batch_slice.total",
        f"{SAMENESS}[cases/borders-keras3-2]",
    ),
    "a rank without rows gives the row that it computes": Fault(
        "matex_tf/steps/exchanger.py",
        "rows = tf.cond(contributes, lambda: tensor, lambda: tensor[:0])",
        "rows = tf.identity(tensor)",
        f"{SAMENESS}[cases/row_mixing-keras3-3 overlapped]",
    ),
    "a mean over rows is that of a rank's rows": Fault(
        "matex_tf/rewrite/rules/reductions.py",
        "    axes = tuple(node.read_axes(1, node.count_axes(0)))\n    return Expansion(_make_mean",
        "    return node.decide([None], SUM)\n    return Expansion(_make_mean",
        "tests/rewrite/test_ops.py",
    ),
    "a maximum over rows is taken for a sum": Fault(
        "matex_tf/rewrite/rules/reductions.py",
        "result = Partial(_REDUCTIONS[node.type])",
        "result = SUM",
        "tests/rewrite/test_ops.py",
    ),
    "what every rank computes whole counts on each": Fault(
        "matex_tf/steps/slices.py",
        "return Slice(first, count, total, contributes, tf.constant(world.get_world().rank == 0))",
        "return Slice(first, count, total, contributes, tf.constant(True))",
        f"{SAMENESS}[cases/borders-keras3-2]",
    ),
    "a damaged state of a run is taken": Fault(
        "matex_tf/resilience/state_files.py",
        "if hashlib.blake2b(content, digest_size=32).digest() != data[-32:]:",
        "if False:",
        "tests/resilience/test_state_files.py",
    ),
    "a reader begins a row too early": Fault(
        "readers/images/idx.py",
        "file.seek(self._start + start * self._item_bytes)",
        "file.seek(self._start + max(start - 1, 0) * self._item_bytes)",
        "tests/readers/test_idx.py",
    ),
    "the ring adds nothing up": Fault(
        "ops/src/engine/sums/ring.cc",
        "if (Adds(round)) {",
        "if (false && Adds(round)) {",
        "tests/ops/engine/test_stress.py",
    ),
    "MPI is given what a device has not written yet": Fault(
        "ops/src/tensorflow/reduce_on_device.cc",
        "if (status.ok()) done->get_future().wait();",
        "",
        "tests/ops/device",
    ),
    "a note is said again and again": Fault(
        "matex_tf/runtime/notes.py",
        "if text in _printed:",
        "if False:",
        "tests/runtime/test_notes.py",
    ),
    "what a full disk has taken of a line stays": Fault(
        "matex_tf/monitor/log.py",
        "os.ftruncate(self._file, self._end)",
        "self._end = os.fstat(self._file).st_size",
        "tests/monitor/test_samples.py",
    ),
    "the rank that waits most is said to be waited for": Fault(
        "matex_tf/observe/balance.py",
        "(steps[rank].waiting, -steps[rank].compute)",
        "-steps[rank].waiting",
        "tests/monitor/test_top.py",
    ),
    "charts of long runs lose what is most": Fault(
        "matex_tf/monitor/report/charts.py",
        "begin + int(part.argmax())}",
        "begin + int(part.argmin())}",
        "tests/monitor/test_report.py",
    ),
    "exit code 0 is believed while a rank writes yet": Fault(
        "matex_tf/launch/run_end.py",
        "return self.script_has_ended and self.are_files_written",
        "return self.script_has_ended",
        "tests/launch/test_restarts.py",
    ),
    "ranks that leave are said to have ended": Fault(
        "matex_tf/runtime/rank_records.py",
        "state=LEFT if _leaves else ENDED",
        "state=ENDED",
        "tests/adapt/test_changes.py",
    ),
    "an error that follows from another is shown": Fault(
        "matex_tf/runtime/rank_records.py",
        "return self.follows, self.number,",
        "return self.number,",
        "tests/runtime/test_rank_records.py",
    ),
    "a wait for others after a loss has no end": Fault(
        "matex_tf/world/time_limit.py",
        "if abort_seconds and waited >= abort_seconds:",
        "if abort_seconds and waited < 0:",
        "tests/resilience/test_elastic_steps.py::test_an_agreement_after_a_loss_that_does_not_come_ends_the_job",
    ),
    "other batches are taken for other code": Fault(
        "matex_tf/sharding/fingerprint.py",
        'raise errors.BatchError(\n        f"{text} Every rank',
        'raise errors.MismatchError(\n        f"{text} Every rank',
        "tests/runtime/test_error_classes.py",
    ),
}


def put_in(fault: Fault, root: Path) -> None:
    """Changes the place in the checkout at `root`; an AssertionError if it is not there exactly once."""
    path = root / fault.file
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} has this {text.count(fault.right)} times: {fault.right}"
    path.write_text(text.replace(fault.right, fault.wrong))


def copy_checkout(folder: Path) -> dict[str, str]:
    """A copy of the checkout in `folder`; gives the environment in which Python takes the packages from it."""
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=skipped)
    for name in ("ops", "readers"):  # beside matex_tf/ in a checkout, inside it where it is installed
        (folder / "matex_tf" / name).symlink_to(folder / name)
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def is_noticed(fault: Fault, folder: Path) -> bool:
    """Whether the test passes in a copy of the checkout, in the empty `folder`, and fails once the fault is put in."""
    environment = copy_checkout(folder)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", fault.test]

    def run_test() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    if run_test().returncode != 0:
        return False
    put_in(fault, folder)
    result = run_test()
    return result.returncode == 1 and re.search(r"^(FAILED|ERROR) ", result.stdout, re.MULTILINE) is not None


def main(names: list[str]) -> int:
    missed = []
    for name in names or FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            noticed = is_noticed(FAULTS[name], Path(folder))
        print(f"{'noticed' if noticed else 'MISSED'}: {name}", flush=True)
        missed += [] if noticed else [name]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
