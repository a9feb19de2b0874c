"""Errors that have ended a thread of the script.

Python prints such an error, and the other threads go on; the exit code may be 0. On a silent rank, whose output is not
shown, nobody sees it. So the error of a silent rank is shown at the end of the script, unless a lower rank has had the
same error. It is shown earlier if this rank fails, or if other ranks wait for it.
"""

from __future__ import annotations

import traceback
from types import TracebackType

from matex_tf.runtime import objects
from matex_tf.world import terminal, world

_texts: dict[tuple[object, ...], str] = {}
"""The description of the first error at each place: by the name of its type, and the files and lines of its traceback.

Messages of the same error may differ between ranks, for example by the address of an object.
"""


def note(error: BaseException, trace: TracebackType | None, text: str) -> None:
    """Keep the description `text` of an error that has ended a thread of this rank."""
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(trace)]
    _texts.setdefault((type(error).__name__, *lines), text)


def describe() -> str:
    """The descriptions of the errors of this rank; "" if there are none, or if the rank has printed them itself."""
    return "".join(_texts.values()) if terminal.is_silent() else ""


def report() -> None:
    """Show each error that no lower rank has had. Collective, at the end of the script."""
    places_by_rank = objects.allgather(list(_texts), "which errors have ended threads")
    lower_rank_places = {place for places in places_by_rank[: world.get_world().rank] for place in places}
    if terminal.is_silent():
        for place, text in list(_texts.items()):  # a further thread may fail at this moment
            if place not in lower_rank_places:
                terminal.write_text(text)
