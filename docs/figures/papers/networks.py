"""The networks of the papers: parameters and multiply-adds, from their definitions or the literature."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """`parameters`, and `operations`: multiply-adds of one row's forward pass. No paper gives the latter."""

    name: str
    parameters: float
    operations: float


ALEXNET = Network("AlexNet", 62.38e6, 1.135e9)
ALEXNET_GROUPED = Network("AlexNet", 60.97e6, 0.714e9)
GOOGLENET = Network("GoogLeNet", 6.80e6, 1.582e9)
INCEPTION_V3 = Network("InceptionV3", 23.85e6, 5.713e9)
RESNET_50 = Network("ResNet-50", 25.64e6, 3.858e9)

ALEXNET_LAYERS = {
    "conv1": 96 * (3 * 11 * 11 + 1),
    "conv2": 256 * (96 * 5 * 5 + 1),
    "conv3": 384 * (256 * 3 * 3 + 1),
    "conv4": 384 * (384 * 3 * 3 + 1),
    "conv5": 256 * (384 * 3 * 3 + 1),
    "fc6": 4096 * (9216 + 1),
    "fc7": 4096 * (4096 + 1),
    "fc8": 1000 * (4096 + 1),
}
"""Parameters of each layer of AlexNet without groups, first to last: 62,378,344, as in XAI's Table 1."""
