"""The importance of each parameter for the trials' results. Pure functions.

The measure is Kelley's epsilon squared (T. L. Kelley, An unbiased correlation ratio measure, PNAS 21, 1935), applied to
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.tune.space import Choice, Config, Parameter

MIN_TRIALS = 8  # the minimum number of trials
_GROUPS, _MIN_GROUP = 5, 4  # groups of a range at most, and trials in a group at least


def measure_importance(parameter: Parameter, configs: Sequence[Config]) -> float | None:
    """The share of the variance of the trials' ranking that `parameter` explains by itself, from 0 to 1.

    The trials with a valid value are divided into groups: by choice, or by value into groups of about equal size.
    The share is 1 - (W / (n - k)) / (T / (n - 1)), the part of the variance that exceeds chance. W is the sum of the
    squared differences between a trial's rank and the mean rank of its group, over k groups. T is the same sum with all
    n trials as one group. Ranks are used instead of results, because a few diverged trials would otherwise dominate.
    Joint effects of several parameters are not measured.

    Args:
        configs: the trials, best first.

    Returns:
        None if there are too few trials, or only one group.
    """
    # Trials of an earlier space file may have other values.
    values = [config[parameter.name] for config in configs if parameter.allows(config.get(parameter.name))]
    if len(values) < MIN_TRIALS:
        return None
    groups = _group_ranks(parameter, values)
    if not 1 < len(groups) < len(values):
        return None
    squares_within = sum(_sum_squares(group) for group in groups)
    squares_in_all = _sum_squares(np.arange(len(values)))
    return max(1 - (squares_within / (len(values) - len(groups))) / (squares_in_all / (len(values) - 1)), 0.0)


def _sum_squares(ranks: np.ndarray) -> float:
    return float(((ranks - ranks.mean()) ** 2).sum())


def _group_ranks(parameter: Parameter, values: Sequence[object]) -> list[np.ndarray]:
    """The ranks of each group's trials: the indices of `values`, which are sorted by result."""
    labels = np.array(values)
    if not isinstance(parameter, Choice):
        sorted_labels, group_count = np.sort(labels), min(max(len(values) // _MIN_GROUP, 2), _GROUPS)
        # Equal numbers have one place in the order, the middle of their places, and so are in one group.
        places = (np.searchsorted(sorted_labels, labels) + np.searchsorted(sorted_labels, labels, "right") - 1) / 2
        labels = (places * group_count / len(values)).astype(int)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
