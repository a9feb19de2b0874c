"""A table as ranks open it together, without a launch."""

import tempfile
from pathlib import Path

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.base.agreement import FailedElsewhere
from matex_tf.readers.base.formats import Ranks
from matex_tf.readers.csv.format import Csv


def alone(path, **options):
    return DataSet("CSV", path, rank=0, size=1, **options)


def write_column(folder, values, encoding="utf-8"):
    """A new file whose column x holds the values."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "a.csv"
    path.write_bytes(("x\ty\n" + "".join(f"{value}\t1\n" for value in values)).encode(encoding))
    return path


def opened(path, size, keep=False, missing="error", kind=Csv, **options):
    """The file as each of `size` ranks opens it together with the others."""
    hosts = [f"host{rank % 2}" for rank in range(size)]
    ranks = [Ranks(rank, size, hosts) for rank in range(size)]
    all_of_them = [kind(path, **options) for _ in ranks]
    for one in all_of_them:
        one.keep, one.missing = keep, missing
    for turn in range(all_of_them[0].surveys):
        found = [one.survey(turn, rank) for one, rank in zip(all_of_them, ranks, strict=True)]
        errors = []
        for one, rank in zip(all_of_them, ranks, strict=True):
            try:
                one.settle(turn, rank, found)
            except (ReaderError, FailedElsewhere) as error:
                errors.append(error)
        if errors:
            raise next(error for error in errors if isinstance(error, ReaderError))
    for one in all_of_them:
        one.end_surveys()
    return all_of_them
