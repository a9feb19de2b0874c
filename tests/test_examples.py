"""Every example, unchanged: the figures under ranks are those of the script alone, and are shown once."""

import functools
import re
from pathlib import Path

import pytest

import launch

EXAMPLES = Path(__file__).parent.parent / "examples"
# 261 digits in batches of 64 end in a batch of 5, and the ranks' slices of a whole batch are uneven on 3.
FEW = ("--epochs", "2", "--rows", "261")
# The reader deals contiguous rows to the ranks, so only a batch of all rows is the same batch for any number of ranks.
ONE_BATCH = ("--epochs", "2", "--batch-size", "4000")
ARGUMENTS = {
    "mnist_keras.py": FEW,
    "mnist_dataset.py": FEW,
    "mnist_loop.py": FEW,
    "mnist_eager.py": FEW,
    "mnist_v1.py": FEW,
    "mnist_import.py": ONE_BATCH,
    "mnist_tfrecord.py": ("--epochs", "2", "--rows", "261"),
    "cars_csv.py": ("--epochs", "4"),
    "climate_netcdf.py": ("--epochs", "3"),
}
# Like the others, by another way of feeding rows; run by --all.
MORE = {"mnist_dataset.py", "mnist_loop.py", "mnist_eager.py", "mnist_tfrecord.py"}
# Of a loss, relative, after 10 steps in float32.
TOLERANCE = 5e-5
# Of an accuracy: one digit of 261 on the edge between two classes.
ONE_ROW = 1 / 261 + 1e-6


def figures(output):
    """{(line, name): value} of the lines "epoch 1  loss 0.5  accuracy 0.9" and "test  loss ...", without seconds."""
    found = {}
    for line in output.splitlines():
        if re.match(r"(epoch \d+|test)  ", line):
            place, *parts = re.split(r"\s{2,}", line)
            for name, value in (part.split() for part in parts):
                if name != "seconds":
                    assert (place, name) not in found, f"printed twice: {line}"
                    found[place, name] = float(value)
    return found


@functools.cache
def alone(example):
    return figures(launch.run_alone(EXAMPLES / example, *ARGUMENTS[example]).check().stdout)


def test_every_example_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.more) for ranks in (1, 3))])
@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=pytest.mark.more) if name in MORE else name for name in ARGUMENTS]
)
def test_figures_are_those_of_the_script_alone(example, ranks):
    expected = alone(example)
    assert len(expected) >= 4
    module = "import matex_tf" not in (EXAMPLES / example).read_text()
    found = figures(launch.run(ranks, EXAMPLES / example, *ARGUMENTS[example], module=module).check().stdout)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if "accuracy" in key[1]:
            assert found[key] == pytest.approx(value, abs=ONE_ROW), key
        else:
            assert found[key] == pytest.approx(value, rel=TOLERANCE), key
