"""The most memory that a call takes, in a process of its own: `tracemalloc.stop` crashes while other threads allocate.

That is CPython's issue 128679, mended in 3.13.2. The process ends without having stopped.
"""

import multiprocessing
import tracemalloc
from collections.abc import Callable
from typing import Any


def peak_of(call: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that Python and NumPy hold at the most while `call`, a function of a module, runs for the second time."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (call, arguments))


def _measure(call: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    call(*arguments)  # imports what it needs
    tracemalloc.start()
    call(*arguments)
    return tracemalloc.get_traced_memory()[1]
