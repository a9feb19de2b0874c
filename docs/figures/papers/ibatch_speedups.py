"""Models of iBatch's published speedups (Wang, Pi and Zhou, AAAI 2019), from the speedup `default` without hiding.

If a step takes 1 on one node, it takes nodes / speedup on `nodes`: 1 of computation, and the rest of communication that
is not hidden.
"""

from __future__ import annotations

from matex_tf.planner.papers.domain import Estimate, check_positive


def speedup_with_pulls_hidden(nodes: int, default: float) -> float:
    """Speedup on `nodes` if all pulls are hidden, from the speedup `default` without hiding.

    Our model: if a step on one node takes 1, a step on `nodes` takes 1 + communication = nodes / default. Pulls are
    half of the communication; the other half, pushes, is exposed.
    """
    _check_speedup(nodes, default)
    return nodes / (1 + (nodes / default - 1) / 2)


def communication_share(nodes: int, speedup: float) -> float:
    """Time of pulls and pushes on `nodes` in steps of one node, if none is hidden, from the measured `speedup`."""
    _check_speedup(nodes, speedup)
    return nodes / speedup - 1


def speedup_with_sparse_gradients(nodes: int, pulls: float, forward: float) -> float:
    """Speedup on `nodes` if pushes take no time, and only the time of `pulls` beyond the `forward` pass is exposed.

    Both are given in steps of one node. Our model.
    """
    check_positive("speedup_with_sparse_gradients", nodes=nodes, pulls=pulls, forward=forward)
    return nodes / (1 + max(0.0, pulls - forward))


def ceiling(nodes: int, default: float, forward: float) -> float:
    """The largest speedup, if pulls can hide only behind the forward pass: the fraction `forward` of a node's step.

    Our model: from the step without hiding, nodes / default, at most `forward` is hidden, and at least 1 remains.
    """
    _check_speedup(nodes, default)
    if not 0 <= forward <= 1:
        raise ValueError(f"ceiling: expected the forward pass to be a part from 0 to 1 of the step; given {forward}")
    return nodes / max(1.0, nodes / default - forward)


def forward_share(nodes: int, default: float, reached: float) -> Estimate:
    """The smallest `forward` with which `ceiling` allows the speedup `reached`."""
    _check_speedup(nodes, default)
    _check_speedup(nodes, reached)
    share = nodes / default - nodes / reached
    return Estimate(share, "a forward pass is no more than the whole step" if share > 1 else "")


def start_ups(nodes: int, default: float, layerwise: float) -> float:
    """L T_s in steps of one node, fitted to the speedup `layerwise` of one pull for each layer.

    Our model: such pulls are hidden as completely as iBatch's, and each layer adds the start of a pull.
    """
    return nodes / layerwise - nodes / speedup_with_pulls_hidden(nodes, default)


def _check_speedup(nodes: int, speedup: float) -> None:
    check_positive("speedup", nodes=nodes, speedup=speedup)
    if speedup > nodes:
        raise ValueError(f"speedup: expected at most {nodes} on {nodes} nodes; given {speedup}")
