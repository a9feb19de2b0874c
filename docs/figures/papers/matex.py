"""Strong scaling with one sum of all gradients: MaTEx-TensorFlow (Vishnu et al., 2017), sections III-D2 and IV-B.

The paper gives the work of a node, C / N, and the method: MPI_Allreduce layer by layer, without overlap. The formula of
the communication is lost in the text. Here a node sends 2 (N - 1) / N of the gradients' bytes, the minimum for a sum.

Symbols: N nodes; C operations of a step on one node; p parameters of 4 bytes; F operations and B bytes a second of a
node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from papers.networks import ALEXNET, ALEXNET_GROUPED, GOOGLENET, INCEPTION_V3, RESNET_50, Network

from matex_tf import arguments
from matex_tf.planner.papers.domain import check_positive

BATCH = {"AlexNet": 256, "GoogLeNet": 256, "InceptionV3": 128, "ResNet-50": 64}
"""Rows of the global batch (IV-B)."""

SPEEDUP_16 = {"AlexNet": 11.0, "GoogLeNet": 14.7, "InceptionV3": 14.5, "ResNet-50": 15.3}
"""Speedup on 16 CPU nodes (IV-B, Fig. 11a). The text gives one more number: AlexNet less than 2 on 4 GPUs."""

UNGROUPED = (ALEXNET, GOOGLENET, INCEPTION_V3, RESNET_50)
GROUPED = (ALEXNET_GROUPED, GOOGLENET, INCEPTION_V3, RESNET_50)

_STEP = 3 * 2  # operations of a step for each multiply-add of a forward pass: the backward pass has twice as many
_BYTES = 4  # of a gradient's number


def speedup(network: Network, nodes: int, ratio: float) -> float:
    """T(1) / T(N), with T(N) = C / (N F) + 2 (N - 1) / N 4 p / B seconds and C = 6 * multiply-adds * batch.

    Args:
        ratio: F / B, operations in the time of a byte; the speedup depends on F and B only by it.
    """
    nodes = arguments.check_whole_number("speedup", "nodes", nodes)
    check_positive("speedup", ratio=ratio)
    work = _STEP * network.operations * BATCH[network.name]
    communication = 2 * (nodes - 1) / nodes * _BYTES * network.parameters * ratio  # in operations, as `work`
    return work / (work / nodes + communication)


@dataclass(frozen=True)
class Fit:
    """A fitted constant, `ratio` F / B, and the resulting speedups on 16 nodes."""

    ratio: float
    speedups: Mapping[str, float]

    def error(self, name: str) -> float:
        """The relative error of the network `name` against the published speedup."""
        return self.speedups[name] / SPEEDUP_16[name] - 1

    @property
    def largest_error(self) -> float:
        return max(abs(self.error(name)) for name in self.speedups)


def fit_ratio(networks: Sequence[Network], fitted: Sequence[str] = tuple(SPEEDUP_16)) -> Fit:
    """The ratio that minimizes the largest error over the networks named `fitted`, applied to all `networks`."""
    chosen = [network for network in networks if network.name in fitted]

    def find_largest_error(logarithm: float) -> float:
        return max(abs(speedup(network, 16, math.exp(logarithm)) / SPEEDUP_16[network.name] - 1) for network in chosen)

    ratio = math.exp(_minimize_function(find_largest_error, math.log(1.0), math.log(1e5)))
    return Fit(ratio, {network.name: speedup(network, 16, ratio) for network in networks})


def leave_one_out(networks: Sequence[Network]) -> dict[str, float]:
    """For each network, the error of its prediction by a fit to the three others."""
    names = [network.name for network in networks]
    return {name: fit_ratio(networks, [other for other in names if other != name]).error(name) for name in names}


def ratio_for(network: Network, nodes: int, reached: float) -> float:
    """The `ratio` with which `speedup` is `reached` on `nodes`."""
    if not 0 < reached < nodes:
        raise ValueError(f"ratio_for: expected a speedup between 0 and {nodes}; given {reached}")
    work = _STEP * network.operations * BATCH[network.name]
    return work * (1 / reached - 1 / nodes) / (2 * (nodes - 1) / nodes * _BYTES * network.parameters)


def _minimize_function(function: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a unimodal function, by golden-section search."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(100):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if function(left) < function(right):
            high = right
        else:
            low = left
    return (low + high) / 2
