"""Releases iterators of `tf.data` in C++ threads.

To release an iterator may take a minute (`let_go.cc`), so a C++ thread does it. `wait_for_ends` waits for these threads
at the end of Python, because functions in a pipeline refer to Python.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import sys
from typing import Any

from matex_tf.lazy import tf

from .library import get_library, load_tensorflow_ops

_SHORT_WAIT_MS, _MAX_WAIT_MS = 100, 120_000
"""How long `wait_for_ends` waits at most before it collects unreachable objects, and after that."""


def let_go(resource: Any) -> None:
    """Release an iterator in a C++ thread, and return at once.

    `resource` is the iterator's handle, an eager tensor. The caller drops it next.
    """
    if not sys.is_finalizing():
        _wait_at_exit()
        with tf.init_scope():  # the garbage collector may call this while a graph is being traced
            get_library().ops.matex_let_go(resource)


def wait_for_ends() -> None:
    """Wait until the threads of `let_go` have ended, for two minutes at most.

    A thread waits a few seconds for other owners of its iterator, for example for an unreachable object. So if the
    threads do not end at once, the garbage collector first removes such objects.
    """
    wait_for_threads = load_tensorflow_ops().c.matex_wait_for_let_go
    wait_for_threads.restype, wait_for_threads.argtypes = ctypes.c_int, [ctypes.c_int]
    if wait_for_threads(_SHORT_WAIT_MS):
        gc.collect()  # an iterator may be held by the traceback of a step in which a rank was lost
        wait_for_threads(_MAX_WAIT_MS)


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_ends)
