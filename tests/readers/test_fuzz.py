"""Damaged files of each format: an error that names the file, or right rows; no crash, no hang.

`--all` tries at least 500 of each, the usual run the first third.
"""

import ast
import collections
import sys
from pathlib import Path

import pytest

import launch

SCRIPT = Path(__file__).with_name("fuzz.py")
ALL, USUAL = 510, 170
FORMATS = (
    "NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4", "HDF5", "HDF5-CHUNKED", "CSV", "CSV-GZIP",
    "PARQUET", "ZARR", "TFRECORD",
    *(pytest.param(name, marks=pytest.mark.more) for name in ("PARQUET-CHECKSUM", "TFRECORD-GZIP")),
    "MNIST", "MNIST-GZIP", "CIFAR", "CIFAR-PICKLE-2", "CIFAR-PICKLE-4", "CIFAR-ARCHIVE",
)  # fmt: skip


@pytest.mark.parametrize("which", FORMATS)
def test_damaged_files_are_errors_or_right_rows(which, tmp_path, pytestconfig):
    number = ALL if pytestconfig.getoption("--all") else USUAL
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT), which, str(tmp_path), str(number)]
    output = launch.execute(command, launch.environment(), timeout=200).check().stdout
    outcomes = collections.Counter()
    for line in output.splitlines():
        if line.startswith("outcomes "):
            outcomes.update(ast.literal_eval(line[9:]))
    assert sum(outcomes.values()) == number
    assert outcomes["error"] >= number // 4, outcomes
