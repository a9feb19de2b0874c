"""Recognizes file systems without locks (flock) by their errors, and describes the lack in a message."""

from __future__ import annotations

import errno

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def lacks_locks(error: OSError) -> bool:
    """Whether `error`, which a call of flock raised, means that the file system has no locks."""
    return error.errno in _NO_LOCKS


def describe_lack(folder: object, error: OSError, consequence: str) -> str:
    """A message of one line that ends with the `consequence` or the remedy."""
    return f"{folder}: expected a file system with locks (flock); found: {error.strerror}. {consequence}"
