"""MATEX_MICROBATCH: a slice that is computed in parts gives what it gives at once, in less memory."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASE = Path(__file__).with_name("parts_case.py")
PARTS = {"MATEX_MICROBATCH": "3"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASE, folder, timeout=300).check()
    return dict(np.load(folder / "found.npz"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_give_what_all_rows_at_once_give(alone, ranks, tmp_path):
    if ranks == 1:
        ended = launch.run_alone(CASE, tmp_path, env=PARTS, module=True, timeout=300).check()
    else:
        ended = launch.run(ranks, CASE, tmp_path, env=PARTS, timeout=300).check()
    found = dict(np.load(tmp_path / "found.npz"))
    assert found.keys() == alone.keys()
    assert [name for name, want in alone.items() if not close(found[name], want)] == []
    said = [line for line in ended.output.splitlines() if "MATEX_MICROBATCH" in line]
    assert len(said) == 2, said
    assert "it does more than to compute its outputs from its rows (AssignVariableOp" in said[0]
    assert "eager code" in said[1]


MEMORY = """
import keras, numpy as np, sys, tensorflow as tf

model = keras.Sequential([keras.Input((32, 32, 1)), *[keras.layers.Conv2D(32, 3, padding="same") for _ in range(4)],
                          keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((512, 32, 32, 1), "float32"), np.zeros((512, 1)), batch_size=512, epochs=2, verbose=0)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
ROWS, ACTIVATIONS = 512, 4 * 32 * 32 * 32 * 4


@pytest.mark.timeout(300)
def test_only_the_activations_of_a_part_are_in_memory():
    whole, parts = (
        int(launch.run_alone(MEMORY, env=env, module=True).check().stdout.split()[-1]) << 10
        for env in ({}, {"MATEX_MICROBATCH": "32"})
    )
    assert whole - parts > 0.5 * ROWS * ACTIVATIONS, (whole, parts)
