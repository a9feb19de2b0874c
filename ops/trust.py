"""Trust in files loaded as code: only root, this user and the installer of matex_tf may be able to change them."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from matex_tf import version

Writer = tuple[str, int]
"""("user", number), ("group", number) or ("everybody", 0)."""


def find_exposure(path: Path, by_others: bool = False) -> str:
    """How an untrusted user could have changed the file or folder `path`, and the remedy; "" if none could.

    Trusted are root, this user, and all who can change the installed package, whose code runs anyway. With `by_others`
    this user is not trusted, because other users are to load the file.

    Raises:
        OSError: the file does not exist.
    """
    trusted_writers = {("user", 0), *find_writers(find_package())}
    if not by_others:
        trusted_writers.add(("user", os.getuid()))
    for writer, (entry, state) in find_writers(path).items():
        if writer in trusted_writers:
            continue
        kind, _ = writer
        if kind == "user":
            remedy = "root or the installer of matex_tf has to own it"
        else:
            remedy = f"`chmod {'g' if kind == 'group' else 'o'}-w {entry}` ends that"
        owner, mode = _describe_writer(("user", state.st_uid)), f"{stat.S_IMODE(state.st_mode):o}"
        return f"{_describe_writer(writer)} can change {entry} (owner: {owner}, mode {mode}); {remedy}"
    return ""


def find_package() -> Path:
    """The folder of the running package."""
    return Path(version.__file__).parent


def find_writers(path: Path) -> dict[Writer, tuple[str, os.stat_result]]:
    """All who can replace the file at `path`, each with a folder, link or file that allows it, and its state."""
    writers: dict[Writer, tuple[str, os.stat_result]] = {}
    os.stat(path)  # raises for circular links, too
    *parents, target = _follow_path(os.path.abspath(path))
    for entry, state in (target, *parents):  # the first entry that a writer can change is kept
        writers.setdefault(("user", state.st_uid), (entry, state))
        # A link's mode means nothing. In a sticky parent folder only the owner of an entry can replace it.
        is_sticky = entry != target[0] and state.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(state.st_mode) or is_sticky:
            continue
        if state.st_mode & stat.S_IWGRP:
            writers.setdefault(("group", state.st_gid), (entry, state))
        if state.st_mode & stat.S_IWOTH:
            writers.setdefault(("everybody", 0), (entry, state))
    return writers


def _follow_path(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder and link on the way to `path`, and finally its target; each with its own state (`os.lstat`)."""
    folder, remaining = "/", deque(path.split("/"))
    yield folder, os.lstat(folder)
    while remaining:
        name = remaining.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        entry = os.path.join(folder, name)
        state = os.lstat(entry)
        yield entry, state
        if stat.S_ISLNK(state.st_mode):
            target = os.readlink(entry)
            remaining.extendleft(reversed(target.split("/")))
            folder = "/" if target.startswith("/") else folder
        else:
            folder = entry


def _describe_writer(writer: Writer) -> str:
    """For messages: "user anna (1001)"."""
    kind, number = writer
    if kind == "everybody":
        return "everybody"
    try:
        name = pwd.getpwuid(number).pw_name if kind == "user" else grp.getgrgid(number).gr_name
    except KeyError:
        return f"{kind} {number}"
    return f"{kind} {name} ({number})"
