"""Opens a data set: checks arguments, reads headers, counts rows and splits them into parts. `DataSet` calls it.

All ranks open it together, and an error on one rank is raised on all. Some formats must read more than headers to count
rows: in surveys, each rank searches its part of the files, and every rank uses all results (see `Format`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from matex_tf import arguments
from matex_tf.readers.base import files
from matex_tf.readers.base.agreement import Together
from matex_tf.readers.base.formats import PARTS, Format, Ranks, ReaderError, is_known, open_format, recognise_format
from matex_tf.readers.rows import scaling
from matex_tf.readers.rows.samples import Source


@dataclass(frozen=True)
class Cut:
    """How rows are divided into parts and samples."""

    split: tuple[float, float, str]  # validation fraction, test fraction, "last" or "spread"
    window: int | None  # rows of a sample; None: a sample is a row
    horizon: int  # rows of a label, if there are windows


def open_source(
    name: str,
    format: Any,
    path: Any,
    options: dict[str, Any],
    missing: Any,
    cut: Cut,
    ranks: Ranks,
    size: int,
    together: Together,
) -> Source:
    """Open the rows of `format` and `path`; without `path`, `format` is the path, and the files tell the format.

    Collective, unless the script gives rank= and size=.

    Args:
        ranks: the ranks that read the files.
        size: the number of ranks among which rows are divided. It differs from `ranks.size` if the script gives size=.
        together: runs an action on every rank, and raises its error on all ranks.
    """

    def open_headers() -> Format:
        if path is None and isinstance(format, str) and is_known(format):
            raise TypeError(f"{name}: the format {format} needs a path")
        format_name, format_path = (recognise_format(format), format) if path is None else (format, path)
        return open_format(format_name, format_path, options, missing)

    def make_source() -> Source:
        source = Source(opened_format, cut.split, cut.window, cut.horizon)
        if source.count_samples("training") < 1:
            raise ReaderError(f"{name}: expected at least one training row, found none")
        return source

    activity = f"opening {name}"
    opened_format = together(open_headers, activity, describe=_describe_opened)
    # Surveys may keep rows only if samples are rows. With size=2 or more this process opens the files alone, and would
    # keep the rows of all shares.
    opened_format.keep = cut.window is None and size == ranks.size
    for turn in range(opened_format.surveys):
        results = together.gather(functools.partial(opened_format.survey, turn, ranks), activity)
        together(functools.partial(opened_format.settle, turn, ranks, results), activity)
    opened_format.end_surveys()
    return together(
        make_source,
        activity,
        describe=lambda opened_source: f"{[opened_source.count_samples(part) for part in PARTS]} rows",
    )


def _describe_opened(opened_format: Format) -> str:
    """The text by which ranks compare whether they see the same files."""
    compared_files = opened_format.files if opened_format.compared is None else opened_format.compared
    return "; ".join(text for text in (opened_format.describe(), files.compute_fingerprint(compared_files)) if text)


def check_share(name: str, rank: Any, size: Any) -> None:
    """Raises TypeError or ValueError for an invalid `rank` or `size`."""
    for option_name, value in (("rank", rank), ("size", size)):
        arguments.check_whole_number("DataSet", option_name, value, None)
    if not 0 <= rank < size:
        raise ValueError(f"{name}: rank has to be 0 to size - 1; given rank={rank}, size={size}")


def check_alone(parallel: Any, reshuffle: str | None, size: int) -> None:
    """Raises ValueError for an option that needs the other ranks. Called if the script has given rank= and size=."""
    for option, is_used in (("parallel=True", parallel), ('reshuffle="epoch"', reshuffle and size > 1)):
        if is_used:
            raise ValueError(f"DataSet: {option} needs the other ranks; it cannot be combined with rank= and size=")


def check_arguments(normalize: Any, window: Any, horizon: Any, reshuffle: Any, distribution: Any, seed: Any) -> None:
    """Raises TypeError or ValueError for an invalid option of `DataSet`, or for two that exclude each other."""
    if not isinstance(normalize, (bool, str)) or normalize not in scaling.CHOICES:
        raise ValueError(
            f'DataSet: normalize has to be False, True or "standard"; given {arguments.describe_value(normalize)}'
        )
    if window is not None:
        arguments.check_whole_number("DataSet", "window, which counts rows,", window)
    arguments.check_whole_number("DataSet", "horizon, which counts rows,", horizon)
    arguments.check_whole_number("DataSet", "seed", seed, 0)
    if reshuffle is not None and not (isinstance(reshuffle, str) and reshuffle == "epoch"):
        raise ValueError(f'DataSet: reshuffle has to be None or "epoch"; given {arguments.describe_value(reshuffle)}')
    if reshuffle and distribution == "batch":
        raise ValueError('DataSet: distribution="batch" keeps the rows of each batch, reshuffle="epoch" changes them')
