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
    trusted = {("user", 0), *find_writers(find_package())}
    if not by_others:
        trusted.add(("user", os.getuid()))
    for writer, (place, state) in find_writers(path).items():
        if writer not in trusted:
            owner = _describe_writer(("user", state.st_uid))
            mode = f"{stat.S_IMODE(state.st_mode):o}"
            remedy = (
                "root or the installer of matex_tf has to own it"
                if writer[0] == "user"
                else f"`chmod {'g' if writer[0] == 'group' else 'o'}-w {place}` ends that"
            )
            return f"{_describe_writer(writer)} can change {place} (owner: {owner}, mode {mode}); {remedy}"
    return ""


def find_package() -> Path:
    """The folder of the running package."""
    return Path(version.__file__).parent


def find_writers(path: Path) -> dict[Writer, tuple[str, os.stat_result]]:
    """All who can replace the file at `path`, each with a folder, link or file that allows it, and its state."""
    found: dict[Writer, tuple[str, os.stat_result]] = {}
    os.stat(path)  # raises for circular links, too
    *above, last = _follow_path(os.path.abspath(path))
    for place, state in (last, *above):
        found.setdefault(("user", state.st_uid), (place, state))
        # A link's mode means nothing. In a sticky parent folder only the owner of an entry can replace it.
        is_sticky = place != last[0] and state.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(state.st_mode) or is_sticky:
            continue
        if state.st_mode & stat.S_IWGRP:
            found.setdefault(("group", state.st_gid), (place, state))
        if state.st_mode & stat.S_IWOTH:
            found.setdefault(("everybody", 0), (place, state))
    return found


def _follow_path(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder and link on the way to `path`, and finally its target; each with its own state (`os.lstat`)."""
    at, remaining = "/", deque(path.split("/"))
    yield at, os.lstat(at)
    while remaining:
        name = remaining.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, name)
        state = os.lstat(place)
        yield place, state
        if stat.S_ISLNK(state.st_mode):
            target = os.readlink(place)
            remaining.extendleft(reversed(target.split("/")))
            at = "/" if target.startswith("/") else at
        else:
            at = place


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
