"""Whether an error is the consequence of a lost rank or host, and not a fault of the script."""

from __future__ import annotations

from matex_tf import errors, ops


def is_loss(error: BaseException) -> bool:
    """Whether the host or another rank failed, not the script. A restarted script may then succeed."""
    class_names = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, MemoryError) or "ResourceExhaustedError" in class_names or is_loss_of_another(error)


def is_loss_of_another(error: BaseException) -> bool:
    """Whether MPI failed, as it does after the loss of a rank: in mpi4py, in the engine, or in an op."""
    if isinstance(error, errors.LostRankError) or ops.find_cause(str(error)) is ops.Cause.MPI:
        return True
    return any(base.__module__.startswith("mpi4py") for base in type(error).__mro__)
