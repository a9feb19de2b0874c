"""File systems without locks (flock): what they answer, and the line that tells people."""

from __future__ import annotations

import errno

_WITHOUT = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def lacks_locks(error: OSError) -> bool:
    """Whether `error`, which a call of flock raised, says that the file system has no locks."""
    return error.errno in _WITHOUT


def describe_lack(folder: object, error: OSError, follows: str) -> str:
    """Found, expected, and what `follows` from it or can be done, in one line."""
    return f"{folder}: expected a file system with locks (flock); found: {error.strerror}. {follows}"
