"""The corpus of `sameness/`: programs that give on ranks what they give alone, each with tags.

`scripts/FOLDER/*.py` are scripts in public styles that know nothing of the library. A file of `cases` has many small
cases, whose results it stores in a dictionary `results`; `corpus_run.py` is what it may ask. A new file in these
folders is part of the corpus. It needs an entry in `TAGS` where the tags of its folder do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from matex_tf.runtime.hooks import find_version

HERE = Path(__file__).parent / "sameness"


@dataclass(frozen=True)
class Way:
    """A run on `ranks`, with settings of the library."""

    ranks: int
    settings: dict[str, str] = field(default_factory=dict, hash=False)


ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1"}
"""As a rank with a core of its own has. Steps are copied with other edges then: see rewrite/early.py."""
WAYS = {
    "alone": Way(0),
    "1": Way(1),
    "2": Way(2, ONE_THREAD),
    "3": Way(3),
    "4": Way(4),
    "3 overlapped": Way(3, {"MATEX_OVERLAP": "on", "MATEX_ALGORITHM": "ring", **ONE_THREAD}),
    # On one host, where new weights are read where they lie, and on two, where messages bring them.
    "2 sharded": Way(2, {"MATEX_STRATEGY": "sharded", "MATEX_RANKS_PER_NODE": "2"}),
    "2 hosts": Way(2, {"MATEX_STRATEGY": "sharded", "MATEX_RANKS_PER_NODE": "1"}),
    "2 serve": Way(2, {"MATEX_STRATEGY": "servers:1"}),
    "1 of 2 only serves": Way(2, {"MATEX_STRATEGY": "servers:1:only"}),
    "1 of 3 only serves": Way(3, {"MATEX_STRATEGY": "servers:1:only"}),
    "2 elastic": Way(2, {"MATEX_ELASTIC": "1"}),
    "2 without XLA": Way(2, {"MATEX_XLA": "off"}),
}

SHARED, PARTLY, WHOLE, ONE_ROW = "shared", "partly", "whole", "one row"
"""Whether ranks share the rows of a script: in all steps, in some, in none, in none as each batch has one row."""
EAGER, GRAPHS, FIRST = "eager", "graphs", "of TensorFlow 1"
"""TensorFlow's behaviour: usual; without eager execution; after `disable_v2_behavior`. None is undone."""


@dataclass(frozen=True)
class Tags:
    """How a program runs, and what is expected of it.

    Args:
        ways: those of the usual run.
        more_ways: of `--all`.
        keras: the versions of Keras in the usual run.
        more_keras: those of `--all`.
        more: whether only `--all` runs it.
        within: how far results may be from those alone, relative to the largest.
        dtype: Keras' default.
        behavior: of TensorFlow.
        rows: whether ranks share them; empty where nothing counts them.
        whole: the names of results "NAME: rows", which no rank computes a part of.
        needs_keras_3: whether it has names of Keras 3.
        is_installed: whether its file lies where packages are installed.
    """

    ways: tuple[str, ...] = ("2",)
    more_ways: tuple[str, ...] = ("3",)
    keras: tuple[str, ...] = ("3",)
    more_keras: tuple[str, ...] = ()
    more: bool = False
    within: float = 1e-10
    dtype: str = "float64"
    behavior: str = EAGER
    rows: str = ""
    whole: tuple[str, ...] = ()
    needs_keras_3: bool = False
    is_installed: bool = False


_STYLE = Tags(rows=SHARED, more_ways=("2", "3", "2 sharded", "2 hosts"))
FOLDERS = {
    "cases": Tags(),
    "scripts/data": _STYLE,
    "scripts/loops": _STYLE,
    "scripts/models": _STYLE,
    "scripts/optimizers": _STYLE,
    "scripts/legacy": replace(_STYLE, keras=("2",)),
    "scripts/v1": replace(_STYLE, within=1e-5, dtype="float32", behavior=FIRST),
}
OVERLAPPED, NEW = {"ways": ("3 overlapped",)}, {"needs_keras_3": True}
# Variables in single precision; half precision, whose loss scale falls at the same steps; single precision, whose
# rounding the optimizer scales up where gradients are nearly 0.
SINGLE, HALF, ROUNDED = {"within": 1e-5}, {"within": 0.02, "dtype": "float32"}, {"within": 1e-4, "dtype": "float32"}
TAGS: dict[str, dict] = {
    "cases/batches": {"within": 1e-9},
    "cases/borders": {"within": 1e-9},
    "cases/compiled": {"more_ways": ("3", "2 without XLA")},
    "cases/concrete_functions": {"ways": ("2", "2 sharded")},
    "cases/eager_steps": {"within": 1e-9, "is_installed": True, "whole": ("losses that layers add",)},
    "cases/first_behavior": {"behavior": GRAPHS},
    "cases/graph_mode": {"behavior": GRAPHS, "keras": ("2",)},
    "cases/loops": OVERLAPPED,
    "cases/metrics": {"more_keras": ("2",)},
    "cases/predict": {"keras": ("2",), "more_keras": ("3",), "whole": ("one row", "eager")},
    "cases/rank_zero": {
        "more_keras": ("2",),
        "more_ways": ("3 overlapped", "2 sharded", "2 serve", "1 of 2 only serves", "2 elastic"),
    },
    "cases/read_ahead": {"more_keras": ("2",), "more_ways": ("3", "2 elastic")},
    "cases/results": {"keras": ("2", "3")},
    "cases/row_mixing": {**OVERLAPPED, "within": 1e-8, "more_ways": ("2",)},
    "cases/styles": {
        "more": True,
        "more_ways": ("1", "3", "4", "3 overlapped", "1 of 2 only serves", "1 of 3 only serves"),
    },
    "cases/variable_order": {**OVERLAPPED, "more_keras": ("2",), "more_ways": ("2 sharded",)},
    "data/pydataset_processes": NEW,
    "data/pydataset_with_workers": NEW,
    "data/ragged_sentences": SINGLE,
    "data/sparse_features": {"rows": PARTLY},
    "legacy/mixed_and_clipped": HALF,
    "loops/actor_critic": {"rows": ONE_ROW},
    "loops/add_loss": NEW,
    "loops/constant_batch_size": {**SINGLE, **OVERLAPPED},
    "loops/curved_losses": {"rows": WHOLE},
    "loops/custom_train_step": NEW,
    "loops/deep_dream": {"rows": ONE_ROW},
    "loops/figures_printed": {"rows": WHOLE},
    "loops/from_scratch": NEW,
    "loops/gan_train_step": NEW,
    "loops/inside_function": {**SINGLE, **OVERLAPPED, "dtype": "float32"},
    "loops/jacobians": {"rows": PARTLY},  # of more rows than the batch has
    "loops/next_of_iterator": SINGLE,
    "loops/persistent_tape": {"rows": ONE_ROW},
    "loops/raw_variables": {**SINGLE, **OVERLAPPED, "rows": WHOLE},
    "loops/run_eagerly": {"rows": WHOLE},
    "models/convnet_augmented": ROUNDED,
    "models/own_metrics_and_callbacks": OVERLAPPED,
    "models/recommender": {"rows": WHOLE},
    "optimizers/accumulation_and_averages": NEW,
    "optimizers/mixed_precision": {**HALF, **NEW},
    "v1/dataset_iterators": OVERLAPPED,
    "v1/own_optimizer": OVERLAPPED,
    "v1/summaries": OVERLAPPED,
    "v1/word2vec_nce": {"rows": WHOLE},
}
MORE = """
data/arrays_validation_split data/csv_and_numpy_iterator data/dictionaries_and_tuples data/epochs_and_executions
data/from_generator data/image_data_generator data/normalization_adapt data/pandas_table data/processes_and_seeds
data/pydataset_with_workers data/python_generator data/ragged_sentences data/repeat_and_steps
data/shuffle_and_parallel_maps data/text_vectorization data/timeseries_windows data/weights_of_samples_and_classes
legacy/tf_keras_import legacy/train_on_batch
loops/actor_critic loops/add_loss loops/adjoint_method loops/attention_translation loops/balanced_losses
loops/clip_by_hand loops/constant_labels loops/curved_losses loops/custom_train_step loops/distillation
loops/figures_printed loops/from_scratch loops/gan_train_step loops/gan_two_tapes loops/gradient_penalty
loops/in_batch_losses loops/masked_loss loops/next_of_iterator loops/persistent_tape loops/raw_logs loops/rows_counted
loops/second_order loops/siamese_contrastive loops/sums_and_averages loops/train_on_batch loops/vae
models/autoencoder models/character_rnn models/convnet_augmented models/own_metrics models/own_parts
models/recommender models/transfer_learning models/transformer_block models/unet models/wide_and_deep
optimizers/accumulation_and_averages optimizers/clipping optimizers/every_optimizer optimizers/mixed_precision
optimizers/schedules optimizers/sparse_gradients
""".split()
"""Run by `--all` only: hardly a line of the product is run by these alone, and they take longest."""


@dataclass(frozen=True)
class Program:
    """A file of the corpus; `name` is that of its folder and its own."""

    name: str
    path: Path
    tags: Tags


def list_programs() -> list[Program]:
    """All programs, those of a behaviour of TensorFlow that cannot be undone last."""
    programs = []
    for folder, tags in FOLDERS.items():
        for path in sorted((HERE / folder).glob("*.py")):
            name = f"{path.parent.name}/{path.stem}"
            own = replace(tags, **{**TAGS.get(name, {}), **({"more": True} if name in MORE else {})})
            if find_version("keras") >= "3" or not own.needs_keras_3:
                programs.append(Program(name, path, own))
    return sorted(programs, key=lambda one: (EAGER, GRAPHS, FIRST).index(one.tags.behavior))


def list_runs() -> Iterator[tuple[Program, str, str, bool]]:
    """(program, version of Keras, way, whether it is run by `--all` only)."""
    for program in list_programs():
        tags = program.tags
        for keras in (*tags.keras, *tags.more_keras):
            for way in dict.fromkeys((*tags.ways, *tags.more_ways)):
                yield program, keras, way, tags.more or keras in tags.more_keras or way not in tags.ways
