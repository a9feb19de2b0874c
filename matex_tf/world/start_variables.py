"""Environment variables that a rank's process needs from its start: Python and the C library read them only then."""

from __future__ import annotations

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""One for all ranks: the order of a set of strings, such as the names of classes, would differ from rank to rank."""
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""malloc asks the kernel for large pages (`madvise`): fewer misses of the address cache where gradients are large."""
