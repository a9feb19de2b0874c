"""What tests mean by equal (rule 15)."""

import numpy as np


def close(got, want):
    """Within 1e-10 of the larger of the tensor's maximum and 1e-3."""
    scale = max(np.abs(want).max(initial=0.0), 1e-3)
    return np.abs(got - want).max(initial=0.0) <= 1e-10 * scale
