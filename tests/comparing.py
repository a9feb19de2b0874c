"""What tests mean by equal (rule 15), and what programs stored for it."""

import numpy as np


def close(got, want, within=1e-10):
    """Within so much of the larger of the tensor's maximum and 1e-3."""
    scale = max(np.abs(want).max(initial=0.0), 1e-3)
    return np.abs(got - want).max(initial=0.0) <= within * scale


def stored(folder, ranks=1):
    """The arrays that each rank stored, by their names."""
    return [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(ranks)]


def differences(want, found, within=1e-10):
    """What of the arrays `want` is not close to them in those that each rank stored, `found`, in words."""
    return [
        f"{name}: rank {rank} is off by {np.abs(left[name] - array).max():.1e}"
        for name, array in want.items()
        for rank, left in enumerate(found)
        if left[name].shape != array.shape or not close(left[name], array, within)
    ]
