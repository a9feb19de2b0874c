"""`matex_tf.tune`: a search for good hyperparameters of a script, started from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from matex_tf import arguments
from matex_tf.deploy.options import distribute_ranks
from matex_tf.deploy.sbatch.job_script import Slurm
from matex_tf.tune import setup
from matex_tf.tune.engines.engine import NAMES
from matex_tf.tune.rungs import check_rungs
from matex_tf.tune.settings import Settings
from matex_tf.tune.setup import SearchResult


def tune(
    script: str | os.PathLike[str], args: Sequence[Any] = (), *, search: Mapping[str, Any] | str | os.PathLike[str],
    objective: Mapping[str, str] | None = None, trials: int = 50, parallel: int = 1, ranks: int = 1,
    engine: str = "random", seed: int = 0, limit: float = 0.0, rungs: Sequence[int] = (), warm_start: bool = True,
    folder: str | os.PathLike[str] = "", database: str | os.PathLike[str] = "", cluster: Slurm | None = None,
) -> SearchResult:  # fmt: skip
    """Search for good hyperparameters of `script` with arguments `args`, as `matex tune` does.

    Returns after all trials.

    Args:
        search: parameters as in the search file (docs/tune.md), `{"--lr": {"log": [1e-5, 1e-1]}}`, or its path.
        objective: as in this file, `{"maximize": "val_accuracy"}`; if `search` is a file, it must be in the file.
        limit: time limit of a trial in seconds; 0: no limit.
        cluster: `matex_tf.Slurm(time="1:00:00")` runs trials as jobs; None: they run on this machine.
        rungs: epochs after which trials pause; the best third continues; see docs/tune.md.

    Raises:
        SpaceError, ValueError, TypeError, JobError: an argument is invalid.
        SearchError: the first trials fail in the same way; the text shows why. DatabaseError, EngineMissingError: the
            text says how to fix it.
    """
    arguments_of_script = arguments.check_words("tune", "args", args)
    trials, parallel, ranks = (
        arguments.check_whole_number("tune", name, value)
        for name, value in (("trials", trials), ("parallel", parallel), ("ranks", ranks))
    )
    seed = arguments.check_whole_number("tune", "seed", seed, None)
    arguments.check_choice("tune", "engine", engine, tuple(NAMES))
    if not arguments.check_number("tune", "limit", limit) >= 0:
        raise ValueError(f"tune: expected limit to be seconds, 0 or more; given {limit!r}")
    epochs = check_rungs([arguments.check_whole_number("tune", "rungs", value) for value in rungs])
    if not os.path.isfile(script):
        raise FileNotFoundError(f"there is no file {os.fspath(script)} in {os.getcwd()}")
    if isinstance(search, Mapping):
        content = {"search": search, **({"objective": objective} if objective else {})}
        name, text = "search", json.dumps(_convert_to_texts(content), indent=1, ensure_ascii=False)
    elif objective is not None:
        raise TypeError(f"tune: the objective stands in {os.fspath(search)}, too: give it there")
    else:
        name, text = os.fspath(search), Path(search).read_text(encoding="utf-8")
    settings = Settings(
        trials=trials, parallel=parallel, ranks=ranks, engine=engine, seed=seed, limit=float(limit),
        warm_start=arguments.check_flag("tune", "warm_start", warm_start), source=os.getcwd(), name=name,
        rungs=epochs,
    )  # fmt: skip
    if cluster is not None:
        if not isinstance(cluster, Slurm):
            raise TypeError(f"tune: expected cluster to be matex_tf.Slurm(...); given {cluster!r}")
        # `ranks` is 1 by default. Then the cluster's own number of ranks counts.
        cluster = distribute_ranks(cluster, ranks) if ranks > 1 else cluster
        settings = replace(settings, ranks=cluster.ranks, slurm=asdict(cluster))
    target = [os.fspath(script), *arguments_of_script]
    return setup.run_search(setup.create_search(target, text, settings, os.fspath(database), os.fspath(folder)))


def _convert_to_texts(value: Any) -> Any:
    """`value` with all scalars in its mappings and lists as texts, as the script receives them: True is `True`."""
    if isinstance(value, Mapping):
        return {str(name): _convert_to_texts(item) for name, item in value.items()}
    return [_convert_to_texts(item) for item in value] if isinstance(value, (list, tuple)) else str(value)
