"""parallel=True: files opened by all ranks through MPI-IO, and read in transfers in which every rank takes part.

A file is open only while all ranks read, because closing it is collective, too; what streams read on their own is
opened plainly.
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
Wish = tuple[int, int, str]  # number of the file, of the variable among those wanted, and its name
_FAILED = (-1, -1, "")
# A rank computes while it waits in MPI for one with a slow disk.
_MOST_SECONDS = 300.0


class Transfers:
    """The transfers of one reading of `stack`, a readers.stack.Stack, that all ranks do at the same time.

    Ranks need different numbers of transfers, of different files. So before each they say what they want next; the
    first wanted in the order of files is read by all, those that want something else taking one sample of it along.
    """

    def __init__(self, stack: Any):
        self._stack = stack
        self._files: dict[int, Any] = {}

    def run_action(self, action: Callable[[], Result]) -> Result:
        """`action()`, which calls `fetch`; then takes part until every rank is done. Collective."""
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
            # In the order of opening, which is the same on all ranks.
            for file in self._files.values():
                library.call_library(file.close, _MOST_SECONDS)

    def fetch(self, path: Path, name: str, action: Callable[[Any], Result]) -> Result:
        """`action(variable)`, with the variable `name` of the commonly open file."""
        names = [one for of_field in self._stack.wanted.values() for one in of_field]
        mine = (self._stack.files.index(path), names.index(name), name)
        while (wish := self._agree_on_next(mine)) != mine:
            assert wish is not None  # there is at least this rank's own
            self._take_along(wish)
        return self._make_transfer(mine, action)

    def _agree_on_next(self, mine: Wish | None) -> Wish | None:
        """What all ranks read next; None when none wants anything more."""
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
