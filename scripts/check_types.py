"""Checks the types of matex_tf by mypy, as pyproject.toml says, over the packages as a wheel has them.

    python scripts/check_types.py [mypy's arguments]

Exit code 0 if all is well. ops/ and readers/ are told as matex_tf/ops/ and matex_tf/readers/.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from wheel_tree import lay_out  # noqa: E402 (the tests' own layout)


def has_types_of_numpy() -> bool:
    """Whether this NumPy is typed as the packages need it; older ones, which old TensorFlows want, are not."""
    return tuple(int(number) for number in version("numpy").split(".")[:2]) >= (2, 5)


def check_types(arguments: Sequence[str] = ()) -> int:
    """mypy's exit code; what it found goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        return run_mypy(Path(folder), arguments).returncode


def run_mypy(
    folder: Path, arguments: Sequence[str] = (), cache: Path = ROOT / ".mypy_cache", **options: Any
) -> subprocess.CompletedProcess:
    """Runs mypy over the packages in `folder`; `options` are those of `subprocess.run`."""
    words = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", cache, "--no-error-summary", *arguments]
    return subprocess.run([sys.executable, "-m", "mypy", *words], cwd=folder, **options)


if __name__ == "__main__":
    sys.exit(check_types(sys.argv[1:]))
