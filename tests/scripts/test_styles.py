"""Every style of script, unchanged, gives under ranks what it gives alone: figures, weights, lines, files; and shares.

The scripts in the folders beside this file know nothing of us. `driver.py` runs them alone and under ranks, many to a
launch.
"""

from __future__ import annotations

import collections
import functools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import launch
from matex_tf.runtime.hooks import find_version

HERE = Path(__file__).parent
GROUPS = {
    "keras": ("data", "loops", "models", "optimizers"),
    "v1": ("v1",),
    "legacy": ("legacy",),
}
TOGETHER = 20
MARK = "@@ "

# How far figures and weights may be apart, relative to the largest: half precision, whose loss scale falls at the same
# steps; single precision, whose rounding the optimizer scales up where gradients are nearly 0.
CLOSE = {"mixed_precision": 0.02, "mixed_and_clipped": 0.02, "convnet_augmented": 1e-4}
# Batches of a single row, of which ranks can share nothing.
SINGLE_ROWS = {"actor_critic", "deep_dream", "persistent_tape"}
# Computed whole on every rank: right, but not faster. Eager code without a model, without work to share, of fixed rows.
WHOLE = {"curved_losses", "figures_printed", "raw_variables", "recommender", "run_eagerly", "word2vec_nce"}
# Most of their rows are computed whole: eager code without a model; Jacobians, of more rows than the batch has.
PARTLY = {"jacobians", "sparse_features"}
# With variables in single precision.
SINGLE = {
    "constant_batch_size",
    "inside_function",
    "next_of_iterator",
    "ragged_sentences",
    "raw_variables",
}
# What these show are names of Keras 3: keras.ops, optimizer.apply, PyDataset, gradient_accumulation_steps, scale_loss.
KERAS_3 = {
    "accumulation_and_averages",
    "add_loss",
    "custom_train_step",
    "from_scratch",
    "gan_train_step",
    "mixed_precision",
    "pydataset_processes",
    "pydataset_with_workers",
}

# Run by --all only. Hardly a line of the product is run by these alone, and they take longest.
MORE = {
    "accumulation_and_averages",
    "actor_critic",
    "add_loss",
    "adjoint_method",
    "arrays_validation_split",
    "attention_translation",
    "autoencoder",
    "balanced_losses",
    "character_rnn",
    "clip_by_hand",
    "clipping",
    "constant_labels",
    "convnet_augmented",
    "csv_and_numpy_iterator",
    "curved_losses",
    "dictionaries_and_tuples",
    "distillation",
    "epochs_and_executions",
    "every_optimizer",
    "figures_printed",
    "from_generator",
    "from_scratch",
    "gan_train_step",
    "gan_two_tapes",
    "gradient_penalty",
    "image_data_generator",
    "in_batch_losses",
    "masked_loss",
    "mixed_precision",
    "next_of_iterator",
    "normalization_adapt",
    "own_metrics",
    "own_parts",
    "pandas_table",
    "persistent_tape",
    "processes_and_seeds",
    "pydataset_with_workers",
    "python_generator",
    "ragged_sentences",
    "raw_logs",
    "recommender",
    "repeat_and_steps",
    "rows_counted",
    "schedules",
    "second_order",
    "shuffle_and_parallel_maps",
    "siamese_contrastive",
    "sparse_gradients",
    "sums_and_averages",
    "text_vectorization",
    "tf_keras_import",
    "timeseries_windows",
    "train_on_batch",
    "transfer_learning",
    "transformer_block",
    "unet",
    "vae",
    "weights_of_samples_and_classes",
    "wide_and_deep",
}

TIMES = re.compile(r"\d+(\.\d+)?(us|ms|s)(/step|/epoch)?\b")
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e[-+]?\d+)?")


@functools.cache
def scripts(group):
    found = sorted(path for folder in GROUPS[group] for path in (HERE / folder).glob("*.py"))
    return [str(path) for path in found if find_version("keras") >= "3" or path.stem not in KERAS_3]


def parts_of(group):
    """The scripts of a group, as many together as run in one process: those of the usual run, then the others."""
    usual = [path for path in scripts(group) if Path(path).stem not in MORE]
    others = [path for path in scripts(group) if path not in usual]
    count = -(-len(others) // TOGETHER)
    return [usual, *(others[part::count] for part in range(count))]


PARTS = [
    pytest.param(group, part, marks=[pytest.mark.more] if part else [])
    for group in GROUPS
    for part in range(len(parts_of(group)))
]


def scripts_for(group, part, ranks, every_way):
    """Each runs under 2 ranks or, one in four, under 3, unless all are asked for; alone: ranks 0."""
    found = parts_of(group)[part]
    if every_way:
        return found
    return [path for place, path in enumerate(found) if not ranks or (place % 4 == 3) == (ranks == 3)]


def run(group, ranks, folder, chosen, **more):
    """What each of the `chosen` scripts left behind on each rank, the lines it printed and the files it wrote."""
    env = {"TF_USE_LEGACY_KERAS": "1" if group == "legacy" else None, "MATEX_EXPLAIN": "1", **more}
    arguments = (HERE / "driver.py", folder, *chosen)
    for script in chosen:
        # As a person's own folder, each script's is there before it starts.
        (folder / "work" / Path(script).stem).mkdir(parents=True)
    if ranks:
        result = launch.run(ranks, *arguments, env=env, timeout=1200).check()
    else:
        result = launch.run_alone(*arguments, env=env, timeout=400).check()
    left = []
    for rank in range(max(ranks, 1)):
        found = {}
        for path in sorted(folder.glob(f"*.rank-{rank}.pickle")):
            found[path.name.split(".")[0]] = pickle.loads(path.read_bytes())
        left.append(found)
    return left, printed(result.stdout), files(folder / "work")


def printed(text):
    """The lines of each script, without times."""
    lines, current = {}, []
    for line in text.splitlines():
        if line.startswith(MARK):
            current = lines.setdefault(line[len(MARK) :].strip(), [])
        else:
            current.append(TIMES.sub("T", line.rstrip()))
    return lines


def files(folder):
    """Names of the files that each script wrote; those of TensorBoard have the time and process in them."""
    found = {}
    for path in sorted(folder.glob("*/**/*")):
        if path.is_file():
            name, *rest = path.relative_to(folder).parts
            found.setdefault(name, []).append(re.sub(r"(events\.out\.tfevents)\..*", r"\1", "/".join(rest)))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory, pytestconfig):
    """What the scripts of a part leave alone, which is found once."""

    @functools.cache
    def run_part(group, part):
        chosen = scripts_for(group, part, 0, pytestconfig.getoption("--all"))
        return run(group, 0, tmp_path_factory.mktemp(f"alone-{group}"), chosen)

    return run_part


def contents(array):
    """Its bytes; of an array of texts, which holds their places in memory, the texts."""
    return array.tolist() if array.dtype.kind == "O" else array.tobytes()


def distance(want, got):
    """The largest difference relative to the larger of the tensor's maximum and 1e-3; infinite for other shapes."""
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return np.inf
    if want.dtype.kind not in "fiub":
        return 0.0 if (want == got).all() else np.inf
    want, got = want.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(want), np.isfinite(got)):
        return np.inf
    finite = np.isfinite(want)
    scale = max(np.abs(want[finite]).max(initial=0.0), 1e-3)
    return np.abs(want[finite] - got[finite]).max(initial=0.0) / scale


def same_line(want, got, tolerance):
    """Whether two printed lines have the same words, and numbers as close as their digits say."""
    if NUMBER.sub("#", want) != NUMBER.sub("#", got):
        return False
    for a, b in zip(NUMBER.finditer(want), NUMBER.finditer(got)):
        allowed = tolerance * abs(float(a.group())) + 1.5 * 10.0 ** -len(a.group(1) or "")
        if abs(float(a.group()) - float(b.group())) > (allowed if a.group(1) else tolerance * abs(float(a.group()))):
            return False
    return True


def problems_of(name, group, want, ranks, lines, written):
    """What is wrong with one script: `want` is what it left alone, `ranks` what it left on each rank."""
    if want is None or want["error"]:
        return [f"alone: {want and want['error']}"]
    missing = [rank for rank, found in enumerate(ranks) if found is None]
    if missing:
        return [f"nothing from ranks {missing}"]
    errors = [f"rank {rank}: {found['error']}" for rank, found in enumerate(ranks) if found["error"]]
    if errors:
        return errors
    found = []
    tolerance = CLOSE.get(name, 1e-5 if group == "v1" or name in SINGLE else 1e-10)
    for kind in ("weights", "figures"):
        for rank, left in enumerate(ranks):
            if left[kind].keys() != want[kind].keys():
                found.append(f"{kind} of rank {rank} are others: {sorted(left[kind].keys() ^ want[kind].keys())}")
                return found
        for key in want[kind]:
            if any(contents(left[kind][key]) != contents(ranks[0][kind][key]) for left in ranks):
                found.append(f"{key} is not the same on all ranks")
            apart = distance(want[kind][key], ranks[0][kind][key])
            if apart > tolerance:
                found.append(f"{key} is off by {apart:.1e}")
    if lines[0] is None or lines[1] is None or len(lines[0]) != len(lines[1]):
        found.append(f"printed {lines[1]} instead of {lines[0]}")
    else:
        near = max(tolerance, 1e-6)
        found += [f"printed {b!r} instead of {a!r}" for a, b in zip(*lines) if not same_line(a, b, near)]
    if written[0] != written[1]:
        found.append(f"wrote {written[1]} instead of {written[0]}")
    computed = [left["rows"] for left in ranks]
    if name in WHOLE | SINGLE_ROWS:
        if any(rows != want["rows"] for rows in computed):
            found.append(f"rows {computed} of {want['rows']}, expected to be computed whole")
        if not any("cannot be sharded" in line for line in ranks[0]["said"]):
            found.append("is computed whole, and no line says so")
    elif name not in PARTLY and (want["rows"] == 0 or max(computed) > 0.85 * want["rows"]):
        found.append(f"rows {computed} of {want['rows']} are not shared out")
    return found


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("group, part", PARTS)
def test_a_script_is_under_ranks_what_it_is_alone(alone, group, part, ranks, tmp_path, pytestconfig):
    chosen = scripts_for(group, part, ranks, pytestconfig.getoption("--all"))
    if not chosen:
        return
    expected = alone(group, part)
    found = run(group, ranks, tmp_path, chosen)
    for name in {Path(path).stem for path in chosen} - SINGLE_ROWS:
        left = [left.get(name) for left in found[0]]
        if all(left):
            note_shared(f"{name} ({group})", left[0]["said"])
    assert not (wrong := differences(group, chosen, expected, found)), "\n".join(wrong)


@pytest.mark.more
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("per_node", ["2", "1"])
@pytest.mark.parametrize("group, part", PARTS)
def test_a_script_is_the_same_where_each_rank_owns_a_piece(alone, group, part, per_node, tmp_path):
    """On one host, where new weights are read where they lie, and on two, where messages bring them."""
    env = {"MATEX_STRATEGY": "sharded", "MATEX_RANKS_PER_NODE": per_node}
    found = run(group, 2, tmp_path, parts_of(group)[part], **env)
    assert not (wrong := differences(group, parts_of(group)[part], alone(group, part), found)), "\n".join(wrong)


def differences(group, chosen, alone, found):
    """What is wrong with each of the `chosen` scripts; `alone` and `found` are what `run` gives."""
    ((want,), lines, written), (left, lines_of_ranks, written_by_ranks) = alone, found
    wrong = []
    for name in sorted(Path(path).stem for path in chosen):
        problems = problems_of(
            name,
            group,
            want.get(name),
            [one.get(name) for one in left],
            (lines.get(name), lines_of_ranks.get(name)),
            (written.get(name), written_by_ranks.get(name)),
        )
        wrong += [f"{name}: {problem}" for problem in problems]
    return wrong


def note_shared(name, said):
    """For the table at the end: each step of a script, whether ranks share it, and why not.

    Of a step in eager code it counts whether ranks share the calls in it.
    """
    for line in said:
        if " cannot be sharded" in line:
            _steps.add(("calls" if " in it are sharded" in line else "whole", name, line))
        elif " is sharded:" in line and "in eager code the call" not in line:
            _steps.add(("shared", name, line))


_steps: set[tuple[str, str, str]] = set()


@pytest.mark.more
def test_most_scripts_gain_from_ranks(capsys):
    """Prints the table of steps: shared as a whole, by the calls in them, or computed whole, and why.

    That each script is computed whole, partly or not, as the lists above say, is seen where it is run.
    """
    counts = collections.Counter(how for how, _, _ in _steps)
    with capsys.disabled():
        print("", *map("\t".join, sorted(_steps)), sep="\n")
        print(len(_steps), "steps:", dict(counts))
    assert len(_steps) - counts["whole"] >= 0.9 * len(_steps)
    gaining = {Path(path).stem for group in GROUPS for path in scripts(group)} - SINGLE_ROWS
    assert len(gaining - WHOLE) >= 0.9 * len(gaining)


def test_what_a_script_leaves_behind_is_noticed(tmp_path):
    said = {
        "first": "import os\nos.environ['LEFT'] = '1'\n",
        "second": "import os, tensorflow as tf\nassert 'LEFT' not in os.environ\n"
        "tf.config.run_functions_eagerly(True)\n",
        "third": "",
    }
    paths = [tmp_path / f"{name}.py" for name in said]
    for path in paths:
        path.write_text(said[path.stem])
        (tmp_path / "work" / path.stem).mkdir(parents=True)
    launch.run(2, HERE / "driver.py", tmp_path, *paths).check()
    errors = [pickle.loads((tmp_path / f"{name}.rank-1.pickle").read_bytes())["error"] for name in said]
    assert errors[:2] == ["", ""] and "left behind: functions that run eagerly" in errors[2], errors


def test_the_comparison_notices_what_is_wrong():
    assert same_line("loss: 0.1234 - T", "loss: 0.1235 - T", 1e-6)
    assert not same_line("loss: 0.1234", "loss: 0.1244", 1e-6)
    assert not same_line("step 3", "step 4", 1e-6)
    assert not same_line("a", "b", 1e-6)
    left = {"weights": {"w": np.ones(3)}, "figures": {}, "rows": 10, "error": "", "said": []}
    half = {**left, "rows": 5}
    assert not problems_of("x", "keras", left, [half, half], (["a"], ["a"]), (None, None))
    assert problems_of("x", "keras", left, [half, left], (["a"], ["a"]), (None, None))
    assert problems_of("x", "keras", left, [half, None], (["a"], ["a"]), (None, None))
    other = {**half, "weights": {"w": np.ones(3) * (1 + 1e-9)}}
    assert problems_of("x", "keras", left, [other, other], (["a"], ["a"]), (None, None))
    assert problems_of("x", "keras", left, [half, other], (["a"], ["a"]), (None, None))
    assert problems_of("x", "keras", left, [half, half], (["a"], ["a", "a"]), (None, None))
    assert problems_of("x", "keras", left, [half, half], (["a"], ["a"]), (["f"], ["f", "g"]))


def test_each_script_is_run_under_ranks():
    for group in GROUPS:
        every = range(len(parts_of(group)))
        assert sorted(path for part in every for path in parts_of(group)[part]) == scripts(group)
        for part in every:
            assert scripts_for(group, part, 2, True) == scripts_for(group, part, 3, True) == parts_of(group)[part]
            usual = [path for ranks in (2, 3) for path in scripts_for(group, part, ranks, False)]
            assert sorted(usual) == sorted(scripts_for(group, part, 0, False))
    names = {Path(path).stem for group in GROUPS for path in scripts(group)}
    assert find_version("keras") < "3" or names > MORE
