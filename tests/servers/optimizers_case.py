"""Updates variables of several shapes with all optimizers of Keras, in a loop of the script, and stores the variables.

Arguments: the folder, the package of Keras, the dtype, and names of optimizers; without names, all optimizers. Some
variables have fewer entries than there are ranks.
"""

import inspect
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import matex_tf

folder, package, dtype, *few = sys.argv[1:]
keras = __import__(package)
generator = np.random.default_rng(3)
SHAPES = [(7, 5), (5,), (5, 3, 2), (1,), (2, 2), ()]
X = generator.normal(size=(24, 7)).astype(dtype)
optimizers = keras.optimizers
chosen = {
    name: kind
    for name, kind in vars(optimizers).items()
    if inspect.isclass(kind)
    and issubclass(kind, optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer")
}
chosen |= {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), amsgrad=True),
    "clipped": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True, global_clipnorm=0.3),
    "average": lambda: optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2),
}
if package == "keras":
    chosen["accumulating"] = lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2)
    chosen["scaling"] = lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.1), initial_scale=8.0)
    del chosen["MultiOptimizer"]  # it is given other optimizers
if few:
    chosen = {name: chosen[name] for name in few}


def slots_of(optimizer):
    owned = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [getattr(one, "_value", one) for one in owned]


def bytes_held(optimizer):
    """The bytes of an optimizer's variables on this rank, of which some are in pieces."""
    held = [one.piece if hasattr(one, "piece") and one.is_in_pieces() else one for one in slots_of(optimizer)]
    return sum(one.numpy().nbytes for one in held)


def step_of(optimizer, of):
    kernel, bias, cube, one, square, scalar = of

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(rows @ tf.convert_to_tensor(kernel) + bias) * one[0]
            hidden = tf.tensordot(hidden, tf.convert_to_tensor(cube), 1) @ tf.convert_to_tensor(square)
            loss = tf.reduce_mean((hidden - scalar) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, of), of))
        return loss

    return step


found = {}
for name, make in chosen.items():
    start = np.random.default_rng(5)
    values = [np.asarray(start.normal(size=shape), dtype) for shape in SHAPES]
    if package == "keras":
        of = [keras.Variable(value, dtype=dtype, name=f"v{index}") for index, value in enumerate(values)]
    else:
        of = [tf.Variable(value, name=f"v{index}") for index, value in enumerate(values)]
    optimizer = make()
    step = step_of(optimizer, of)
    for number in range(4):
        step(X[number * 6 : number * 6 + 6])
    found[f"{name}|bytes"] = np.array(bytes_held(optimizer))
    for index, variable in enumerate([*of, *slots_of(optimizer)]):
        found[f"{name}|{index}"] = variable.numpy()
    step(X[:6])  # variables that were made whole to be read are divided into pieces again
    found[f"{name}|after"] = np.concatenate([np.ravel(variable.numpy()) for variable in of])

np.savez(Path(folder) / f"rank-{matex_tf.rank()}.npz", **found)
