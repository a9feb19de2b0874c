"""parallel=True: all ranks open the files through MPI-IO and read them in collective transfers.

Closing a file is collective, too, so files stay open only during a collective read. Streams read independently, so they
open files without MPI-IO.
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
Wish = tuple[int, int, str]  # indices of the file and of the variable, and the variable's name
_FAILED = (-1, -1, "")
# A rank that waits in MPI for a rank with a slow disk uses CPU time.
_MOST_SECONDS = 300.0


class Transfers:
    """The collective transfers of one read of `stack`, a `readers.arrays.stack.Stack`.

    Ranks need different numbers of transfers, of different files. Before each transfer the ranks exchange the variable
    that each wants next. All ranks then read the first of these variables in the order of files; a rank that wants
    another variable reads one sample and drops it.
    """

    def __init__(self, stack: Any):
        self._stack = stack
        self._files: dict[int, Any] = {}

    def run_action(self, action: Callable[[], Result]) -> Result:
        """Run `action()`, which calls `fetch`, then join the other ranks' transfers until every rank is done.
        Collective.
        """
        try:
            result = action()
        except agreement.FailedElsewhere:
            raise
        except Exception:
            self._agree_on_next(_FAILED)
            raise
        else:
            while (wish := self._agree_on_next(None)) is not None:
                self._take_along(wish)
            return result
        finally:
            # Files close in the order of opening, which is the same on all ranks.
            for file in self._files.values():
                library.call_library(file.close, _MOST_SECONDS)

    def fetch(self, path: Path, name: str, action: Callable[[Any], Result]) -> Result:
        """Return `action(variable)` for the variable `name` of the file that all ranks have open."""
        names = [one for of_field in self._stack.wanted.values() for one in of_field]
        mine = (self._stack.files.index(path), names.index(name), name)
        while (wish := self._agree_on_next(mine)) != mine:
            assert wish is not None  # at least this rank has a wish
            self._take_along(wish)
        return self._make_transfer(mine, action)

    def _agree_on_next(self, mine: Wish | None) -> Wish | None:
        """Returns the transfer that all ranks do next; None if no rank wants another one."""
        wishes = [wish for wish in objects.allgather(mine, "reading files together") if wish is not None]
        if _FAILED in wishes and mine != _FAILED:
            raise agreement.FailedElsewhere
        return min(wishes, default=None)

    def _take_along(self, wish: Wish) -> None:
        self._make_transfer(wish, lambda variable: variable.read_samples(0, 1))

    def _make_transfer(self, wish: Wish, action: Callable[[Any], Result]) -> Result:
        number, _, name = wish
        path = self._stack.files[number]
        with self._stack.convert_errors(path, f"reading {name!r} with all ranks from"):
            if number not in self._files:
                self._files[number] = library.call_library(
                    lambda: self._stack.open_together(path, world.get_communicator("readers")), _MOST_SECONDS
                )
            variable = library.call_library(lambda: self._stack.find_variable(self._files[number], path, name))

            def transfer() -> Result:
                with variable.enter_collective():
                    return action(variable)

            return library.call_library(transfer, _MOST_SECONDS)
