"""The folders of compiled ops. They are loaded as code, so no folder is used that an untrusted user could have changed.

A folder for all users (`matex build --into`) is searched first; then come this user's own folders.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from matex_tf import errors, settings

from . import trust

_announced: set[Path] = set()  # folders that a message has named


def find_cache_folder() -> Path:
    """The folder for compiled ops, made if necessary: MATEX_CACHE_DIR; else matex_tf in the user's cache folder; else,
    if that one cannot be used, a folder of the user's own in the folder for temporary files.

    Raises:
        BuildError: MATEX_CACHE_DIR cannot be written to, or others can write to it; or no folder can be used.
    """
    cache_dir = settings.get_settings().cache_dir
    if cache_dir:  # by the user: this folder or an error
        folder = Path(cache_dir).expanduser()
        if not ensure_folder(folder):
            raise errors.BuildError(
                f"MATEX_CACHE_DIR={cache_dir}: this folder cannot be made or written to, and the compiled "
                "ops are kept there. Set it to one that can, on a file system that all nodes see."
            )
        if exposure := trust.find_exposure(folder):
            raise errors.BuildError(
                f"MATEX_CACHE_DIR={cache_dir}: compiled ops are loaded as code, but {exposure}. Or set MATEX_CACHE_DIR "
                "to a folder that only you can write to."
            )
        return folder
    reasons: list[str] = []  # why the candidates so far cannot be used: not writable, or others can write there
    for candidate in list_own_folders():
        exposure = trust.find_exposure(candidate) if ensure_folder(candidate) else f"{candidate} cannot be written to"
        if not exposure:
            if reasons and candidate not in _announced:
                _announced.add(candidate)
                print_message(f"{reasons[0]}. matex_tf keeps its files in {candidate}")
            return candidate
        reasons.append(exposure)
    raise errors.BuildError(
        f"{'. And '.join(reasons)}. But the compiled ops must be kept somewhere: set MATEX_CACHE_DIR to a folder of "
        "your own."
    )


def list_own_folders() -> list[Path]:
    """The candidates for this user's ops: MATEX_CACHE_DIR; else one in the cache folder and one for temporary files."""
    cache_dir = settings.get_settings().cache_dir
    if cache_dir:
        return [Path(cache_dir).expanduser()]
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # A user without a home directory has no such folder: "~" stays relative.
    return [folder for folder in (Path(cache_home, "matex_tf"), name_host_folder()) if folder.is_absolute()]


def find_shared_folder() -> Path | None:
    """The folder of ops built for all users: MATEX_OPS_DIR; else the default folder, if it exists.

    Raises:
        BuildError: MATEX_OPS_DIR does not exist, or an untrusted user could have written to it.
    """
    ops_dir = settings.get_settings().ops_dir
    folder = Path(ops_dir).expanduser().absolute() if ops_dir else name_usual_folder()
    if not os.access(folder, os.R_OK | os.X_OK):
        if ops_dir:
            raise errors.BuildError(
                f"MATEX_OPS_DIR={ops_dir}: there is no such folder, or it cannot be read. `matex build --into "
                f"{ops_dir}` makes it. Without MATEX_OPS_DIR each user's ops are built at first use."
            )
        return None
    require_trust(folder)
    return folder


def name_usual_folder() -> Path:
    """The default of MATEX_OPS_DIR: `matex_tf.libs` in the folder that contains the installed package."""
    return trust.find_package().resolve().parent / "matex_tf.libs"


def require_trust(path: Path) -> None:
    """Raise BuildError if an untrusted user could have written to the folder or library `path`."""
    if exposure := trust.find_exposure(path):
        raise errors.BuildError(
            f"compiled ops are loaded as code, but {exposure}. Or set MATEX_OPS_DIR to another folder, such as one "
            "that you fill by `matex build --into FOLDER`."
        )


def make_shared_folder(folder: Path) -> None:
    """Make `folder` for other users; print a note if they would not trust it. Raises BuildError."""
    previous_umask = os.umask(0o022)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise errors.BuildError(f"{folder}: this folder cannot be made or written to: {error.strerror}") from error
    finally:
        os.umask(previous_umask)
    require_trust(folder)
    if exposure := trust.find_exposure(folder, by_others=True):
        print_message(f"other users will not load what is built there: {exposure}")


def name_host_folder() -> Path:
    """The user's own folder among the temporary files of this host."""
    return Path(tempfile.gettempdir(), f"matex_tf-{os.getuid()}")


def ensure_folder(folder: Path) -> bool:
    """Make the folder `folder` if necessary; returns whether files can be made in it."""
    try:
        for path in (*reversed(folder.parents), folder):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)  # closed to others, under any umask
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def print_message(text: str) -> None:
    if not settings.get_settings().quiet:
        print(f"matex_tf: {text}", file=sys.stderr, flush=True)
