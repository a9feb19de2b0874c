"""The errors of matex_tf: one class for each remedy.

All are `MatexError`. Errors of TensorFlow's ops stay `tf.errors.OpError`: errors in a step, in a collective of tensors,
and NaN with MATEX_CHECK_NUMERICS. Wrong arguments of functions are `TypeError` and `ValueError`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable


def _describe_single_rank() -> str:
    return f"rank 0 of 1 on {socket.gethostname()}"


describe_rank: Callable[[], str] = _describe_single_rank
"""Returns rank, number of ranks and host of this process, for the text of a `RankError`; `world.world` sets it."""


class MatexError(Exception):
    """The base of all errors of matex_tf."""


class SettingError(MatexError, ValueError):
    """A MATEX_* variable has an impossible value, or there is no such variable. Correct the variable."""


class ReaderError(MatexError, ValueError):
    """A file violates its format; the text names file, place, expected and found. Correct the file or options."""


class BuildError(MatexError, RuntimeError):
    """The ops cannot be built or loaded; the text says why. Install what is missing, or run `matex build`."""


class RankError(MatexError, RuntimeError):
    """An error that concerns several ranks; its text begins with the rank and the host that raise it.

    The class itself is raised if the engine fails, or if another rank has raised an error. In the second case, the
    first error of the run has the cause.
    """

    def __init__(self, message: str):
        super().__init__(f"{describe_rank()}: {message}")


class SetupError(RankError):
    """The launcher, MPI, a library's version, a folder or a setting does not fit this run. Start it differently."""


class MismatchError(RankError):
    """Ranks are at different collectives, or have different models, settings or items; the text names the difference.

    Have every rank run the same code in the same order, and build the same model.
    """


class BatchError(RankError):
    """Ranks have different batches, or shards that do not fit together; the text names ranks and numbers of rows.

    Give every rank the same data, or mark a rank's own rows by `matex_tf.shard` or `matex_tf.readers.DataSet`.
    """


class UnsupportedError(RankError):
    """The script does something that ranks cannot do together; the text names the place and an alternative."""


class LostRankError(RankError):
    """A rank was lost, and the other ranks cannot go on without it. The same command starts the run again.

    With `matex run --restarts` or `--elastic` the run continues from its saved state. A script cannot catch this error:
    the run ends, because results without the lost rank would be wrong.
    """


for _kind in (MatexError, SettingError, ReaderError, BuildError, RankError):
    _kind.__module__ = "matex_tf"  # the name in tracebacks is the name for scripts
for _kind in RankError.__subclasses__():
    _kind.__module__ = "matex_tf"
