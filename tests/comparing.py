"""What tests mean by equal (rule 15), and what programs stored for it."""

import numpy as np


def measure_distance(want, got):
    """The largest difference, relative to the larger of the maximum of `want` and 1e-3.

    It is infinite for other shapes and dtypes, other places of numbers that are not finite, and for different texts.
    """
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return np.inf
    if want.dtype.kind not in "fiub":
        return 0.0 if (want == got).all() else np.inf
    want, got = want.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(want), np.isfinite(got)):
        return np.inf
    finite = np.isfinite(want)
    scale = max(np.abs(want[finite]).max(initial=0.0), 1e-3)
    return np.abs(want[finite] - got[finite]).max(initial=0.0) / scale


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
