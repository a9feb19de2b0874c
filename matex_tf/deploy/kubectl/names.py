"""Valid Kubernetes names for jobs."""

from __future__ import annotations

import re
import secrets

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of the random ending
_LONGEST = 40  # letters of a job's name; the names of its pods are longer, at most 63


def make_name(name: str) -> str:
    """A unique, valid Kubernetes name for a job."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].strip("-")
    stem = stem if stem[:1].isalpha() else f"run-{stem}".strip("-")
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"


def is_name(name: str) -> bool:
    """Whether `name` is a valid name of an MPIJob. It begins with a letter; Slurm's job ids are numbers."""
    return re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) is not None


def is_made(name: str) -> bool:
    """Whether `make_name` could have made this name."""
    return is_name(name) and re.fullmatch(rf".*-[{_LETTERS}]{{5}}", name) is not None
