"""Draws the pictures of README.md and docs/: `python docs/figures/draw.py [FOLDER]`, by default beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import concepts  # noqa: E402
import measured  # noqa: E402
import structure  # noqa: E402

PICTURES = {
    "hosts": concepts.hosts,
    "sequence": concepts.sequence,
    "tickets": concepts.tickets,
    "run": concepts.run,
    "strategies": concepts.strategies,
    "job": concepts.job,
    "slices": structure.slices,
    "gradient": structure.gradient,
    "batch": structure.batch,
    "placements": structure.placements,
    "rows": structure.rows,
    "curve": measured.curve,
    "timeline": measured.timeline,
    "scaling": measured.scaling,
}


def main() -> int:
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
