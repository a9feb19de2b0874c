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
        with _keep_exit_code():
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    if not os.path.exists(script):
        raise SystemExit(f"python -m matex_tf: there is no script {script!r} in {os.getcwd()}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise SystemExit(f"python -m matex_tf: expected a script; {script!r} is a folder without __main__.py")
    sys.argv = list(arguments)
    # With `-m`, Python has put the current folder first in the path; for `python script.py` it is the real folder of
    # the script. A folder or an archive is put there by `run_path`. With the option -P there is no such entry.
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[:1] = [os.path.dirname(os.path.realpath(script))] if pkgutil.get_importer(script) is None else []
    with _keep_exit_code():
        runpy.run_path(os.path.abspath(script), run_name="__main__")


@contextlib.contextmanager
def _keep_exit_code() -> Iterator[None]:
    """A context in which the script runs. Records the exit code of the SystemExit that ends the script; a SystemExit
    that the script catches has no effect.
    """
    exit_codes.mark_watched()
    try:
        yield
        exit_codes.remember_exit_code(None)  # no SystemExit has ended the script
    except SystemExit as exit_request:
        exit_codes.remember_exit_code(exit_request.code)
        raise


def _has_module(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the missing module is another one, which a parent package of `module` imports
    except (ValueError, ImportError):
        pass  # a name that no module can have
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
