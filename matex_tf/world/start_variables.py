"""Environment variables that a rank's process needs from its start: Python and the C library read them only then."""

from __future__ import annotations

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""The same hash seed for all ranks: otherwise the order of a set of strings, such as class names, would differ."""
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""malloc requests large pages (`madvise`): fewer TLB misses with large gradients."""
