"""`DataSet(..., parallel=True)`: all ranks open the files through MPI-IO and read them in collective transfers.

A transfer is one call of h5py or netCDF4, which all ranks must make together, each for its own samples. Ranks need
different transfers, so before each one they agree on the next (`Transfers`). Closing a file is also collective, so
files stay open only during a collective read. A `stream` reads independently on each rank, without MPI-IO.
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
# The limit of CPU seconds of a call, after which `library` treats the call as an endless loop. The seconds include the
# time in which a rank waits in MPI for a rank with a slow disk, so the limit is much higher than the usual one.
_MAX_SECONDS = 300.0


class Transfers:
    """The collective transfers of one read of `stack`, a `readers.arrays.stack.Stack`.

    Ranks need different numbers of transfers, of different files, but all ranks must take part in each:

    1. The ranks exchange requests: the variable that each needs next, or none.
    2. The first of these variables, in the order of files, is next on all ranks.
    3. All ranks read it. A rank that needs another variable, or none, joins: it reads one sample and drops it.

    A read ends when no rank has a request. A rank that fails announces this as its request, and all ranks stop.
    """

    def __init__(self, stack: Any):
        self._stack = stack
        self._files: dict[int, Any] = {}  # the open files, by their index in `stack.files`

    def run_action(self, action: Callable[[], Result]) -> Result:
        """Run `action()`, which calls `fetch`; then join the other ranks' transfers until all are done. Collective."""
        try:
            result = action()
            while (request := self._agree_on_next(None)) is not None:
                self._join_transfer(request)
        except agreement.FailedElsewhere:
            raise  # all ranks have seen the request of the failed rank, so none waits for a request of this rank
        except Exception:
            self._agree_on_next(_FAILED)
            raise
        else:
            return result
        finally:
            # Files close in the order of opening, which is the same on all ranks.
            for file in self._files.values():
                library.call_library(file.close, _MAX_SECONDS)

    def fetch(self, path: Path, name: str, action: Callable[[Any], Result]) -> Result:
        """Return `action(variable)`, as one transfer of all ranks, for the variable `name` of the file at `path`.

        Joins the transfers that come before.
        """
        all_names = [
            variable_name for field_names in self._stack.variable_names.values() for variable_name in field_names
        ]
        own_request: Request = (self._stack.files.index(path), all_names.index(name), name)
        while (request := self._agree_on_next(own_request)) != own_request:
            assert request is not None  # at least this rank has a request
            self._join_transfer(request)
        return self._make_transfer(own_request, action)

    def _agree_on_next(self, own_request: Request | None) -> Request | None:
        """The request that all ranks serve next; None if no rank has one. `own_request`: of this rank, if any."""
        requests = [
            request for request in objects.allgather(own_request, "reading files together") if request is not None
        ]
        if _FAILED in requests and own_request != _FAILED:
            raise agreement.FailedElsewhere
        return min(requests, default=None)

    def _join_transfer(self, request: Request) -> None:
        self._make_transfer(request, lambda variable: variable.read_samples(0, 1))

    def _make_transfer(self, request: Request, action: Callable[[Any], Result]) -> Result:
        """Return `action(variable)` for the variable of `request`, together with all ranks."""
        file_index, _, name = request
        path = self._stack.files[file_index]
        with self._stack.convert_errors(path, f"reading {name!r} with all ranks from"):
            if file_index not in self._files:
                self._files[file_index] = library.call_library(
                    lambda: self._stack.open_together(path, world.get_communicator("readers")), _MAX_SECONDS
                )
            variable = library.call_library(lambda: self._stack.find_variable(self._files[file_index], path, name))

            def transfer() -> Result:
                with variable.enter_collective():
                    return action(variable)

            return library.call_library(transfer, _MAX_SECONDS)
