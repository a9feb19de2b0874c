"""The packages as a wheel has them: ops/ and readers/ inside of matex_tf/."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"matex_tf": "matex_tf", "ops": "matex_tf/ops", "readers": "matex_tf/readers"}


def lay_out(folder: Path) -> Path:
    """Copies the Python files of all rooms into `folder`; the package."""
    for room, name in ROOMS.items():
        shutil.copytree(ROOT / room, folder / name, ignore=shutil.ignore_patterns("src", "__pycache__"))
    return folder / "matex_tf"
