"""Opens a data set: checks arguments, reads headers, counts rows and splits them into parts. `DataSet` calls it.

Every step runs on all ranks and fails on all ranks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import arguments
from matex_tf.readers.base import files, formats
from matex_tf.readers.base.agreement import Together
from matex_tf.readers.base.formats import PARTS, Format, Held, Ranks, ReaderError, Survey
from matex_tf.readers.rows import scaling
from matex_tf.readers.rows.samples import Source


def open_source(
    name: str,
    format: Any,
    path: Any,
    options: dict[str, Any],
    missing: Any,
    make_source: Callable[[Format], Source],
    ranks: Ranks,
    keep: bool,
    together: Together,
) -> tuple[Source, Held | None]:
    """Open the rows of `format` and `path`; without `path`, `format` is the path, and the files tell the format.

    Returns the samples that `make_source` makes of the opened format, and the rows that opening has read; see
    `Format.survey` for these and for `keep`. Collective, unless the script gives rank= and size=.
    """

    def open_headers() -> Format:
        if path is None and isinstance(format, str) and formats.is_known(format):
            raise TypeError(f"{name}: the format {format} needs a path")
        kind, place = (formats.recognise_format(format), format) if path is None else (format, path)
        return formats.open_format(kind, place, options, missing)

    def make_nonempty() -> Source:
        source = make_source(opened)
        if source.count_samples("training") < 1:
            raise ReaderError(f"{name}: expected at least one training row, found none")
        return source

    doing = f"opening {name}"
    opened = together(open_headers, doing, describe=_describe_opened)
    held = _run_survey(opened.survey(ranks, keep), together, doing)
    source = together(
        make_nonempty, doing, describe=lambda made: f"{[made.count_samples(part) for part in PARTS]} rows"
    )
    return source, held


def _run_survey(survey: Survey, together: Together, doing: str) -> Held | None:
    """Run a survey: all ranks take each step together. Returns what it returns."""
    found: Sequence[Any] | None = None
    returned: list[Held | None] = []

    def take_step() -> Any:
        try:
            return survey.send(found)  # type: ignore[arg-type]
        except StopIteration as end:
            returned.append(end.value)
            return None

    try:
        while not returned:
            found = together.gather(take_step, doing)
    finally:
        survey.close()  # removes temporary files after an error
    return returned[0]


def _describe_opened(opened: Format) -> str:
    """The text by which ranks compare whether they see the same files."""
    compared = opened.files if opened.compared is None else opened.compared
    return "; ".join(text for text in (opened.describe(), files.compute_fingerprint(compared)) if text)


def check_share(name: str, rank: Any, size: Any) -> None:
    """Raises TypeError or ValueError for an invalid `rank` or `size`."""
    for what, value in (("rank", rank), ("size", size)):
        arguments.check_whole_number("DataSet", what, value, None)
    if not 0 <= rank < size:
        raise ValueError(f"{name}: rank has to be 0 to size - 1; given rank={rank}, size={size}")


def check_alone(parallel: Any, reshuffle: str | None, size: int) -> None:
    """Raises ValueError if an option needs the other ranks although the script has given rank= and size=."""
    for option, is_used in (("parallel=True", parallel), ('reshuffle="epoch"', reshuffle and size > 1)):
        if is_used:
            raise ValueError(f"DataSet: {option} needs the other ranks; it cannot be combined with rank= and size=")


def check_arguments(normalize: Any, window: Any, horizon: Any, reshuffle: Any, distribution: Any, seed: Any) -> None:
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
