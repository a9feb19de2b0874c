"""parallel=True: all ranks open the files through MPI-IO and read them in collective transfers.

A transfer is one call of the library, which all ranks must make together, each for its own samples. Closing a file is
also collective, so files stay open only during a collective read. Streams read independently, without MPI-IO.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from matex_tf.readers.arrays import library
from matex_tf.readers.base import agreement
from matex_tf.runtime import objects
from matex_tf.world import world

Result = TypeVar("Result")
Request = tuple[int, int, str]  # a read that a rank needs: indices of file and variable, and the variable's name
_FAILED = (-1, -1, "")  # the request of a rank that has failed
# CPU seconds of a call. They include the time in which a rank waits in MPI for a rank with a slow disk.
_MAX_SECONDS = 300.0


class Transfers:
    """The collective transfers of one read of `stack`, a `readers.arrays.stack.Stack`.

    Ranks need different numbers of transfers, of different files, but all ranks must take part in each. Before each
    transfer the ranks exchange requests: the variable that each needs next. All ranks then read the first of these
    variables in the order of files. A rank that needs another variable joins: it reads one sample and drops it.
    """

    def __init__(self, stack: Any):
        self._stack = stack
        self._files: dict[int, Any] = {}

    def run_action(self, action: Callable[[], Result]) -> Result:
        """Run `action()`, which calls `fetch`; then join the other ranks' transfers until all are done. Collective."""
        try:
            result = action()
        except agreement.FailedElsewhere:
            raise
        except Exception:
            self._agree_on_next(_FAILED)
            raise
        else:
            while (request := self._agree_on_next(None)) is not None:
                self._join_transfer(request)
            return result
        finally:
            # Files close in the order of opening, which is the same on all ranks.
            for file in self._files.values():
                library.call_library(file.close, _MAX_SECONDS)

    def fetch(self, path: Path, name: str, action: Callable[[Any], Result]) -> Result:
        """Return `action(variable)`, as one transfer of all ranks, for the variable `name` of the file at `path`.

        Joins the transfers that come before.
        """
        names = [name for field_names in self._stack.variable_names.values() for name in field_names]
        mine: Request = (self._stack.files.index(path), names.index(name), name)
        while (request := self._agree_on_next(mine)) != mine:
            assert request is not None  # at least this rank has a request
            self._join_transfer(request)
        return self._make_transfer(mine, action)

    def _agree_on_next(self, mine: Request | None) -> Request | None:
        """The request that all ranks serve next; None if no rank has one. `mine`: this rank's request, if any."""
        requests = [request for request in objects.allgather(mine, "reading files together") if request is not None]
        if _FAILED in requests and mine != _FAILED:
            raise agreement.FailedElsewhere
        return min(requests, default=None)

    def _join_transfer(self, request: Request) -> None:
        self._make_transfer(request, lambda variable: variable.read_samples(0, 1))

    def _make_transfer(self, request: Request, action: Callable[[Any], Result]) -> Result:
        """Return `action(variable)` for the variable of `request`, together with all ranks."""
        number, _, name = request
        path = self._stack.files[number]
        with self._stack.convert_errors(path, f"reading {name!r} with all ranks from"):
            if number not in self._files:
                self._files[number] = library.call_library(
                    lambda: self._stack.open_together(path, world.get_communicator("readers")), _MAX_SECONDS
                )
            variable = library.call_library(lambda: self._stack.find_variable(self._files[number], path, name))

            def transfer() -> Result:
                with variable.enter_collective():
                    return action(variable)

            return library.call_library(transfer, _MAX_SECONDS)
