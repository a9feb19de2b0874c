"""A hash of the content of an array, by the engine."""

from __future__ import annotations

from typing import Any

from .library import get_library

_BLOCK_BYTES = 64 << 20


def hash_content(array: Any, seed: int = 0) -> int:
    """A 64-bit hash of an array's dtype, shape and bytes, at memory speed; not cryptographic.

    Raises:
        TypeError: the array contains Python objects, which have no bytes of their own.
    """
    import numpy as np

    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"hash_content: expected an array of numbers or fixed-size strings, not dtype {array.dtype}")
    hash_bytes = get_library().c.matex_hash
    header = f"{array.dtype.str} {array.dtype.name} {array.shape}".encode()
    hash_value = hash_bytes(header, len(header), seed & 0xFFFFFFFFFFFFFFFF)
    if array.size == 0:
        return hash_value
    # In blocks of rows: an array that is not contiguous is copied, but only one block at a time.
    rows = array.reshape(1) if array.ndim == 0 else array
    block_rows = max(1, _BLOCK_BYTES // max(1, rows.nbytes // len(rows)))
    for start in range(0, len(rows), block_rows):
        block = np.ascontiguousarray(rows[start : start + block_rows])
        hash_value = hash_bytes(block.ctypes.data, block.nbytes, hash_value)
    return hash_value
