"""A process that fits again and again holds no more than before; benchmarks/soak.py looks for longer, and at more."""

import runpy
from pathlib import Path

import launch

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_repeated_fits_hold_nothing():
    soak = runpy.run_path(str(BENCHMARKS / "soak.py"))
    result = launch.run(2, BENCHMARKS / "soak_worker.py", "fits", 40, timeout=280).check()
    course = soak["course_of"](result.stdout, 0.5)
    assert course.is_even, result.stdout
    assert course.growth < soak["LIMIT"], result.stdout
