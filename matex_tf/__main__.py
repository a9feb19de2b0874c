"""`python -m matex_tf script.py args…`, or `python -m matex_tf -m package.module args…`: run a script unchanged."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pkgutil
import runpy
import sys
from collections.abc import Iterator

from matex_tf.world import exit_codes

_USAGE = "usage: python -m matex_tf script.py [arguments]\n       python -m matex_tf -m package.module [arguments]"


@contextlib.contextmanager
def _record_exit_code() -> Iterator[None]:
    """A context that records the exit code of the SystemExit that leaves it; a SystemExit that the script catches has
    no effect.

    At the end of Python, all ranks exchange their recorded codes (`shutdown.end_rank`), which Python itself does not
    tell. Another exception is left to `sys.excepthook`, which ends all ranks with a code of its own.
    """
    exit_codes.mark_watched()  # from here, calls of `sys.exit` are not recorded
    try:
        yield
    except SystemExit as exit_request:
        exit_codes.remember_exit_code(exit_request.code)
        raise


@_record_exit_code()
def main(arguments: list[str]) -> None:
    """Run the script or module that `arguments` name, as `python` would. `import matex_tf` has attached the runtime."""
    asks_help = arguments[:1] in (["-h"], ["--help"])
    if asks_help or arguments in ([], ["-m"]):
        print(_USAGE, file=sys.stdout if asks_help else sys.stderr)
        raise SystemExit(0 if asks_help else 2)
    if arguments[0] == "-m":
        if not _has_module(arguments[1]):
            raise SystemExit(f"python -m matex_tf: there is no module {arguments[1]!r} for Python run in {os.getcwd()}")
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    if not os.path.exists(script):
        raise SystemExit(f"python -m matex_tf: there is no script {script!r} in {os.getcwd()}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise SystemExit(f"python -m matex_tf: expected a script; {script!r} is a folder without __main__.py")
    sys.argv = list(arguments)
    # For `-m matex_tf`, Python has put the current folder first in the path. For a script, Python puts the real folder
    # of the script there. With the options -P and -I there is no such entry; Python 3.10 has only -I.
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]
        is_plain_file = pkgutil.get_importer(script) is None  # else a folder or an archive, which `run_path` adds
        if is_plain_file:
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    runpy.run_path(os.path.abspath(script), run_name="__main__")


def _has_module(module: str) -> bool:
    """Whether Python finds `module`. Imports its parent packages, and raises their errors."""
    if module.startswith("."):  # `find_spec` raises ImportError for a relative name
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the missing module is another one, which a parent package of `module` imports
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
