"""Names of jobs, as Kubernetes takes them."""

from __future__ import annotations

import re
import secrets

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST = 40  # of a job's name: pods have longer ones made of it, of 63 letters at most


def make_name(name: str) -> str:
    """A name for a job that no other has, of the letters that Kubernetes takes."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].strip("-")
    stem = stem if stem[:1].isalpha() else f"run-{stem}".strip("-")
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"


def is_name(name: str) -> bool:
    """Whether Kubernetes may have a job of this name. It begins with a letter, where jobs of Slurm have numbers."""
    return re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) is not None


def is_made(name: str) -> bool:
    """Whether `make_name` may have made this name."""
    return is_name(name) and re.fullmatch(rf".*-[{_LETTERS}]{{5}}", name) is not None
