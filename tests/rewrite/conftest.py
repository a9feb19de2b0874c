from __future__ import annotations

import keras
import pytest


@pytest.fixture
def float64():
    """Models compute in float64, and draw their weights from one seed."""
    before = keras.backend.floatx(), keras.mixed_precision.global_policy()
    keras.backend.set_floatx("float64")
    keras.mixed_precision.set_global_policy("float64")  # kept once somebody has asked for it
    keras.utils.set_random_seed(1)
    yield
    keras.backend.set_floatx(before[0])
    keras.mixed_precision.set_global_policy(before[1])
