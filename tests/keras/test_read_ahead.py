"""`fit` and validation over a part of a source have the batches that they have alone, in every epoch."""

from pathlib import Path

import numpy as np
import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("read_ahead_cases.py")


def of_batches(*epochs):
    """The losses of epochs with these batches."""
    return np.array([sum(4.0**number for number in epoch) for epoch in epochs])


# How far the script alone reads ahead of these is a matter of time; most often that far. Keras 3 gives the first two
# batches of a generator, at which it has looked, again in each validation.
READ_ON = {
    "validate dataset that reads on": of_batches((0, 1, 2), (4, 5, 6), (8, 0, 1), (3, 4, 5)),
    "validate dataset that reads on, 2 ahead": of_batches((0, 1, 2), (5, 6, 7), (1, 2, 3), (6, 7, 8)),
}
GENERATOR = {
    "0": of_batches((0, 1, 2), (0, 1, 4), (0, 1, 6), (0, 1, 8)),
    "1": of_batches((0, 1, 2), (5, 6, 7), (1, 2, 3), (6, 7, 8)),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, legacy, settings",
    [
        (2, "0", {}),
        (3, "1", {}),
        pytest.param(3, "0", {}, marks=pytest.mark.more),
        pytest.param(2, "0", {"MATEX_ELASTIC": "1"}, marks=pytest.mark.more),
    ],
)
def test_epochs_over_a_part_of_a_source_have_the_sequential_batches(tmp_path, ranks, legacy, settings):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASES, alone, env=keras).check()
    result = launch.run(ranks, CASES, together, env={**launch.ALL_FILES, **keras, **settings}, timeout=200).check()
    want = {**stored(alone)[0], **READ_ON, "validate generator": GENERATOR[legacy]}
    wrong = differences(want, stored(together, ranks))
    assert not wrong, "\n".join(wrong)
    assert "different rows" not in result.stderr
