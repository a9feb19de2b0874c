"""The importance of each parameter for the trials' results. Pure functions.

The measure is Kelley's epsilon squared (T. L. Kelley, An unbiased correlation ratio measure, PNAS 21, 1935), applied to
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.tune.space import Choice, Config, Parameter

MIN_TRIALS = 8
"""The minimum number of trials."""
_GROUPS, _MIN_GROUP = 5, 4


def measure_importance(parameter: Parameter, configs: Sequence[Config]) -> float | None:
    """The share of the variance of the trials' ranking that `parameter` explains by itself, from 0 to 1.

    The trials with a value of the parameter are divided into groups: by choice, or by value into groups of equal size.
        The share is 1 - (W/(n-k)) / (T/(n-1)), the part of the variance that exceeds chance: W is the sum of squares
        within the k groups, and T that of all n trials. Places in the ranking replace the results, because a few
        diverged trials would otherwise dominate. Joint effects of several parameters are not measured.

    Args:
        configs: the trials, best first.

    Returns:
        None if there are too few trials, or only one group.
    """
    values = [config[parameter.name] for config in configs if parameter.name in config]
    if len(values) < MIN_TRIALS:
        return None
    places = np.arange(len(values), dtype=float)
    groups = [places[group] for group in _group_places(parameter, values)]
    if not 1 < len(groups) < len(values):
        return None
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    whole = float(((places - places.mean()) ** 2).sum())
    return max(1 - (within / (len(values) - len(groups))) / (whole / (len(values) - 1)), 0.0)


def _group_places(parameter: Parameter, values: Sequence[object]) -> list[np.ndarray]:
    """The places of each group's trials."""
    if isinstance(parameter, Choice):
        found = [np.array([place for place, value in enumerate(values) if value == one]) for one in parameter.choices]
        return [group for group in found if len(group)]
    order = np.argsort(np.array(values, dtype=float), kind="stable")
    return np.array_split(order, min(max(len(values) // _MIN_GROUP, 2), _GROUPS))
