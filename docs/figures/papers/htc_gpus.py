"""The number of GPUs by lemma 3.1 of HTC (Zou et al., 2017, section 3.2)."""

from __future__ import annotations

import math

from matex_tf import arguments
from matex_tf.planner.papers.domain import check_positive


def efficiency(gpus: int, overhead: float) -> float:
    """alpha = (1 + R_O) / (1 + G R_O) on G `gpus`, lemma 3.1 (equation 13): speedup over number of GPUs.

    `overhead` R_O = T_O / T_C is the time that GPUs do not divide over the time that they divide, measured on one GPU.
    The lemma is Amdahl's law with the parallel fraction T_C / (T_C + T_O).
    """
    gpus = arguments.check_whole_number("efficiency", "gpus", gpus)
    if not 0 <= overhead < math.inf:
        raise ValueError(f"efficiency: expected an overhead of 0 or more; given {overhead}")
    return (1 + overhead) / (1 + gpus * overhead)


def overhead(gpus: int, efficiency: float) -> float:
    """R_O that results in `efficiency` alpha on `gpus` (equation 12). Raises ValueError if alpha <= 1 / G."""
    gpus = arguments.check_whole_number("overhead", "gpus", gpus)
    if not 1 / gpus < efficiency <= 1:
        raise ValueError(f"overhead: expected an efficiency above 1/{gpus} and at most 1; given {efficiency}")
    return (1 - efficiency) / (efficiency * gpus - 1)


def gpus_for(speedup: float, overhead: float) -> int | None:
    """The fewest GPUs with a speedup alpha G of at least `speedup` (lemma 3.1); None: no number of GPUs has it."""
    check_positive("gpus_for", speedup=speedup)
    if overhead * speedup >= 1 + overhead:  # alpha G is below (1 + R_O) / R_O for every G
        return None
    return max(1, math.ceil(speedup / (1 + overhead - overhead * speedup) - 1e-9))
