"""What benchmarks/planning.py plans: `MODEL ROWS STEPS`, a model of models.py in a plain loop."""

from __future__ import annotations

import sys

import tensorflow as tf
from models import CASES, LARGE, ON_DEVICE
from training import prepared

name, rows, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_, data, step = prepared({**CASES, **ON_DEVICE, **LARGE}[name], rows)
for x, y in tf.data.Dataset.from_tensors(data).repeat(steps):
    step(x, y)
