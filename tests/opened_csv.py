"""A CSV file as ranks open it together, without a launch."""

from matex_tf.readers import ReaderError
from matex_tf.readers.base.agreement import FailedElsewhere
from matex_tf.readers.base.formats import Ranks
from matex_tf.readers.csv.format import Csv


def opened(path, size, keep=False, missing="error", **options):
    """The file as each of `size` ranks opens it together with the others."""
    hosts = [f"host{rank % 2}" for rank in range(size)]
    ranks = [Ranks(rank, size, hosts) for rank in range(size)]
    all_of_them = [Csv(path, **options) for _ in ranks]
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
        one.settled()
    return all_of_them
