"""Equal to the sequential run (rule 15): each program of the corpus gives on ranks what it gives alone.

Compared are figures, weights, printed lines and files; and ranks must share the work, as the tags of the program say.
All programs of a way to run share a launch (`program.py`): `-k borders` runs one of them.
"""

from __future__ import annotations

import collections
import functools
import json
import pickle
import re
import shutil
from dataclasses import dataclass, replace

import corpus
import numpy as np
import pytest
from comparing import measure_distance

import launch

PROGRAM = corpus.HERE / "program.py"
MARK = "@@ "
TIMES = re.compile(r"\d+(\.\d+)?(us|ms|s)(/step|/epoch)?\b")
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e[-+]?\d+)?")
ROWS = ": rows"
"""The end of the name of a result that counts rows of a rank."""


@dataclass(frozen=True)
class Left:
    """What a program has left: on each rank what `program.py` stores, the lines it printed, the files it wrote."""

    ranks: list[dict]
    lines: list[str]
    files: list[str]


class Runs:
    """Launches of programs, each made once. `which` is usual or all."""

    def __init__(self, folder, which, chosen):
        self.folder, self.which, self._chosen = folder, which, chosen

    def find(self, program, keras, way):
        """What `program` has left; an AssertionError shows the end of the output where it has left nothing."""
        left, ended = self._launch(keras, way)
        if program.name not in left or ended.returncode:
            ended.check()
            raise AssertionError(f"nothing of {program.name} from a rank")
        return left[program.name]

    @functools.cache  # noqa: B019 (as long as the tests of this file)
    def _launch(self, keras, way):
        programs = [program for program in corpus.list_programs() if (program.name, keras, way) in self._chosen]
        return self.launch(programs, keras, way)

    def launch(self, programs, keras, way):
        ranks, settings = corpus.WAYS[way].ranks, corpus.WAYS[way].settings
        folder = self.folder / f"keras{keras} {way}"
        jobs = [self._make_job(folder, program, keras, ranks) for program in programs]
        (folder / "programs.json").write_text(json.dumps({"which": self.which, "jobs": jobs}))
        env = {"TF_USE_LEGACY_KERAS": "1" if keras == "2" else None, "MATEX_EXPLAIN": "1", **settings}
        if ranks:
            ended = launch.run(ranks, PROGRAM, folder, env=env, timeout=1200)
        else:
            ended = launch.run_alone(PROGRAM, folder, env=env, timeout=600)
        left, printed = {}, split_lines(ended.stdout)
        for program in programs:
            paths = [folder / f"{program.name}.rank-{rank}.pickle" for rank in range(max(ranks, 1))]
            if all(path.exists() for path in paths):
                results = [pickle.loads(path.read_bytes()) for path in paths]
                files = list_files(folder / "work" / program.name)
                left[program.name] = Left(results, printed[program.name], files)
        return left, ended

    def _make_job(self, folder, program, keras, ranks):
        # As a person's own folder, each program's is there before it starts.
        (folder / "work" / program.name).mkdir(parents=True)
        (folder / program.name).parent.mkdir(exist_ok=True)
        path, alone = program.path, self.folder / f"keras{keras} alone" / f"{program.name}.rank-0.pickle"
        if program.tags.is_installed:  # whose code it is does not depend on the folder
            path = folder / "lib" / "python" / "site-packages" / path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(program.path, path)
        return {
            "name": program.name,
            "path": str(path),
            "dtype": program.tags.dtype,
            "counts_rows": bool(program.tags.rows),
            "is_v1": program.tags.behavior == corpus.FIRST,
            "alone": str(alone) if ranks and alone.exists() else "",
        }


def split_lines(text):
    """The lines that each program has printed, without times."""
    lines, current = {}, []
    for line in text.splitlines():
        if line.startswith(MARK):
            current = lines.setdefault(line[len(MARK) :].strip(), [])
        else:
            current.append(TIMES.sub("T", line.rstrip()))
    return lines


def list_files(folder):
    """Names of the files that a program has written; those of TensorBoard have the time and process in them."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("**/*")) if path.is_file()]
    return [re.sub(r"(events\.out\.tfevents)\..*", r"\1", name) for name in names]


def contents(array):
    """Its bytes; of an array of texts, which holds their places in memory, the texts."""
    return array.tolist() if array.dtype.kind == "O" else array.tobytes()


def is_same_line(want, got, tolerance):
    """Whether two printed lines have the same words, and numbers as close as their digits say."""
    if NUMBER.sub("#", want) != NUMBER.sub("#", got):
        return False
    for a, b in zip(NUMBER.finditer(want), NUMBER.finditer(got)):
        allowed = tolerance * abs(float(a.group())) + 1.5 * 10.0 ** -len(a.group(1) or "")
        if abs(float(a.group()) - float(b.group())) > (allowed if a.group(1) else tolerance * abs(float(a.group()))):
            return False
    return True


def list_faults(tags, alone, found):
    """What is wrong with a program, of which `alone` is what it left without ranks, `found` what it left on them."""
    want, ranks = alone.ranks[0], found.ranks
    errors = [f"alone: {want['error']}"] if want["error"] else []
    errors += [f"rank {rank}: {left['error']}" for rank, left in enumerate(ranks) if left["error"]]
    kinds = () if errors else ("weights", "figures")
    for kind, rank, left in ((kind, rank, left) for kind in kinds for rank, left in enumerate(ranks)):
        if left[kind].keys() != want[kind].keys():
            errors.append(f"{kind} of rank {rank} are others: {sorted(left[kind].keys() ^ want[kind].keys())}")
    if errors:
        return errors
    faults = [f"rank {rank}: {fault}" for rank, left in enumerate(ranks) for fault in left["faults"]]
    named = [(kind, name) for kind in kinds for name in want[kind]]
    for kind, name in named:
        arrays = [left[kind][name] for left in ranks]
        if name.endswith(ROWS):
            faults += list_faults_of_rows(name, want[kind][name], arrays, tags.whole)
            continue
        for rank, array in enumerate(arrays):
            apart = measure_distance(want[kind][name], array)
            if apart > (max(tags.within, 1e-5) if array.dtype == np.float32 else tags.within):
                faults.append(f"{name}: rank {rank} is off by {apart:.1e}")
        if tags.rows and any(contents(array) != contents(arrays[0]) for array in arrays):
            faults.append(f"{name} is not the same on all ranks")
    if len(alone.lines) != len(found.lines):
        faults.append(f"printed {found.lines} instead of {alone.lines}")
    near = max(tags.within, 1e-6)
    pairs = zip(alone.lines, found.lines)
    faults += [f"printed {b!r} instead of {a!r}" for a, b in pairs if not is_same_line(a, b, near)]
    if alone.files != found.files:
        faults.append(f"wrote {found.files} instead of {alone.files}")
    return [*faults, *list_faults_of_sharing(tags, want, ranks)]


def list_faults_of_rows(name, alone, found, whole):
    """Each rank computes a part of the rows, or all of them if the result is one of `whole`."""
    is_whole = name.removesuffix(ROWS) in whole
    for rank, rows in enumerate(found if alone and len(found) > 1 else ()):
        if (rows >= 0.8 * alone) != is_whole:
            yield f"{name}: rank {rank} computes {rows} of {alone}, expected is {'all' if is_whole else 'a part'}"


def list_faults_of_sharing(tags, alone, ranks):
    """Whether ranks share the rows of a script as its tags say, by how many have passed backwards on each."""
    computed = [left["rows"] for left in ranks]
    if tags.rows in (corpus.WHOLE, corpus.ONE_ROW):
        if any(rows != alone["rows"] for rows in computed):
            yield f"rows {computed} of {alone['rows']}, expected to be computed whole"
        if not any("cannot be sharded" in line for line in ranks[0]["notes"]):
            yield "is computed whole, and no line says so"
    elif tags.rows == corpus.SHARED and (alone["rows"] == 0 or max(computed) > 0.85 * alone["rows"]):
        yield f"rows {computed} of {alone['rows']} are not shared out"


PARAMETERS = [
    pytest.param(program, keras, way, id=f"{program.name}-keras{keras}-{way}", marks=[pytest.mark.more] if more else [])
    for program, keras, way, more in corpus.list_runs()
]


@pytest.fixture(scope="module")
def runs(request, which, tmp_path_factory):
    """Launches of the programs that are chosen, and of these alone."""
    chosen = set()
    for item in request.session.items:
        if item.module is request.module and hasattr(item, "callspec"):
            program, keras, way = (item.callspec.params[name] for name in ("program", "keras", "way"))
            chosen |= {(program.name, keras, way), (program.name, keras, "alone")}
    return Runs(tmp_path_factory.mktemp("runs"), which, chosen)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("program, keras, way", PARAMETERS)
def test_a_program_gives_on_ranks_what_it_gives_alone(runs, program, keras, way):
    alone = runs.find(program, keras, "alone")
    found = runs.find(program, keras, way)
    note_steps(program, found.ranks[0]["notes"])
    faults = list_faults(program.tags, alone, found)
    assert not faults, "\n".join(faults)


_steps: set[tuple[str, str, str]] = set()


def note_steps(program, notes):
    """For the table at the end: each step of a script, whether ranks share it, and why not.

    Of a step in eager code it counts whether ranks share the calls in it.
    """
    if program.tags.rows in ("", corpus.ONE_ROW):
        return
    for line in notes:
        if " cannot be sharded" in line:
            _steps.add(("calls" if " in it are sharded" in line else "whole", program.name, line))
        elif " is sharded:" in line and "in eager code the call" not in line:
            _steps.add(("shared", program.name, line))


@pytest.mark.more
def test_most_scripts_gain_from_ranks(capsys):
    """Prints the table of steps: shared as a whole, by the calls in them, or computed whole, and why."""
    counts = collections.Counter(how for how, _, _ in _steps)
    with capsys.disabled():
        print("", *map("\t".join, sorted(_steps)), sep="\n")
        print(len(_steps), "steps:", dict(counts))
    assert len(_steps) - counts["whole"] >= 0.9 * len(_steps)
    gaining = [one for one in corpus.list_programs() if one.tags.rows not in ("", corpus.ONE_ROW)]
    assert sum(one.tags.rows != corpus.WHOLE for one in gaining) >= 0.9 * len(gaining)


def test_what_a_program_leaves_behind_is_noticed(tmp_path):
    texts = {
        "first": "import os\nos.environ['LEFT'] = '1'\n",
        "second": "import os, tensorflow as tf\nassert 'LEFT' not in os.environ\n"
        "tf.config.run_functions_eagerly(True)\n",
        "third": "",
    }
    programs = []
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        programs.append(corpus.Program(f"texts/{name}", path, corpus.Tags()))
    left, _ = Runs(tmp_path, "usual", set()).launch(programs, "3", "2")
    errors = [left[one.name].ranks[1]["error"] for one in programs]
    assert errors[:2] == ["", ""] and "left behind: functions that run eagerly" in errors[2], errors


def test_the_comparison_notices_what_is_wrong():
    assert is_same_line("loss: 0.1234 - T", "loss: 0.1235 - T", 1e-6)
    assert not is_same_line("loss: 0.1234", "loss: 0.1244", 1e-6)
    assert not is_same_line("step 3", "step 4", 1e-6)
    assert not is_same_line("a", "b", 1e-6)
    tags = corpus.Tags(rows=corpus.SHARED)
    given = {"weights": {"w": np.array([1.0, 1e-6])}, "figures": {}, "rows": 10, "error": "", "notes": [], "faults": []}
    half = {**given, "rows": 5}

    def fails(*ranks, tags=tags, alone=given, lines=("a",), files=()):
        return bool(list_faults(tags, Left([alone], ["a"], []), Left(list(ranks), list(lines), list(files))))

    def weights(*values):
        return {**half, "weights": {"w": np.array(values)}}

    assert not fails(half, half)
    assert not fails(weights(1.0, 1e-6 + 1e-12), weights(1.0, 1e-6 + 1e-12))
    assert fails(half, given)  # of which the second computes all rows
    assert fails(half, {**half, "error": "Traceback"})
    assert fails(half, {**half, "faults": ["a fault"]})
    assert fails(weights(1 + 1e-9, 1e-6), weights(1 + 1e-9, 1e-6))
    assert fails(half, weights(1 + 1e-15, 1e-6))
    assert fails(half, {**half, "weights": {}})
    assert fails(half, half, lines=("a", "a"))
    assert fails(half, half, files=("f",))
    assert fails(half, half, tags=replace(tags, rows=corpus.WHOLE))
    counted = [{**half, "figures": {"x: rows": np.array(rows)}} for rows in (10, 5)]
    of_cases = corpus.Tags(whole=("y",))
    assert not fails(counted[1], counted[1], tags=of_cases, alone=counted[0])
    assert fails(counted[0], counted[1], tags=of_cases, alone=counted[0])


def test_each_program_runs():
    """In the usual run, unless it is run by `--all` only; and each entry of a table is one of a program."""
    runs = list(corpus.list_runs())
    usual = collections.Counter((program.name, keras) for program, keras, _, more in runs if not more)
    for program in corpus.list_programs():
        assert all((usual[program.name, keras] == 0) == program.tags.more for keras in program.tags.keras)
    if corpus.find_version("keras") >= "3":
        assert {program.name for program, *_ in runs} >= {*corpus.TAGS, *corpus.MORE}
    assert {way for _, _, way, _ in runs} <= {*corpus.WAYS}
