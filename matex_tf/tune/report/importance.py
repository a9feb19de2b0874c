"""How much of what trials reach is due to each parameter. Pure functions.

The measure is Kelley's epsilon squared (T. L. Kelley, An unbiased correlation ratio measure, PNAS 21, 1935), of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.tune.space import Choice, Config, Parameter

LEAST = 8
"""Of fewer trials nothing is said."""
_GROUPS, _IN_EACH = 5, 4


def measure_importance(parameter: Parameter, configs: Sequence[Config]) -> float | None:
    """The share of the variance of places that `parameter` explains by itself: 0 is none, 1 all of it.

    The trials in which it has a value are put into groups: those of a choice, or equally many by their values. What
    groups differ by more than chance would have them, of the variance, is its share: 1 - (W/(n-k)) / (T/(n-1)), where W
    is the sum of squares within the k groups, and T that of all n. Places in place of values: a few trials that have
    diverged would else be all there is to explain. What parameters do only together is not seen.

    Args:
        configs: the trials, best first.

    Returns:
        None where there are too few trials, or one group.
    """
    values = [config[parameter.name] for config in configs if parameter.name in config]
    if len(values) < LEAST:
        return None
    places = np.arange(len(values), dtype=float)
    groups = [places[group] for group in _group_places(parameter, values)]
    if not 1 < len(groups) < len(values):
        return None
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    whole = float(((places - places.mean()) ** 2).sum())
    return max(1 - (within / (len(values) - len(groups))) / (whole / (len(values) - 1)), 0.0)


def _group_places(parameter: Parameter, values: Sequence[object]) -> list[np.ndarray]:
    """The places of the trials of each group."""
    if isinstance(parameter, Choice):
        found = [np.array([place for place, value in enumerate(values) if value == one]) for one in parameter.choices]
        return [group for group in found if len(group)]
    order = np.argsort(np.array(values, dtype=float), kind="stable")
    return np.array_split(order, min(max(len(values) // _IN_EACH, 2), _GROUPS))
