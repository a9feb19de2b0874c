"""Steps in which XLA compiles a function, copied for ranks: `python compiled_steps.py FOLDER` stores what they give.

Without ranks: what the steps give alone. Nothing in them is replaced under ranks: no tape, no optimizer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import tensorflow as tf

from matex_tf import ops
from matex_tf.rewrite.compiled import MUST_COMPILE
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Slice
from matex_tf.world import world

N, STEPS = 11, 2
_random = np.random.default_rng(5)
X, Y = _random.normal(size=[N, 6]), _random.normal(size=[N, 2])


def make_variables():
    random = np.random.default_rng(6)
    return [tf.Variable(random.normal(size=size)) for size in ([6, 4], [4, 2])] + [tf.Variable(1)]


def make_step():
    """All of a step: sums and extremes, statistics of the batch, rows in reverse, random numbers, a loop, a branch."""
    first, second, turns = variables = make_variables()

    @tf.function(jit_compile=True)
    def step(x, y):
        turns.assign_add(1)
        hidden = tf.tanh((x - tf.reduce_mean(x, 0)) @ first)
        mask = tf.random.stateless_uniform([tf.shape(x)[0], 4], [3, turns], dtype=x.dtype) < 0.7
        hidden += 0.1 * tf.random.stateless_normal(tf.shape(hidden), [turns, 2], dtype=x.dtype)
        made = tf.where(mask, hidden, 0.0) @ second
        for _ in tf.range(2):
            made += tf.reduce_max(made, 0) * 0.1
        loss = tf.reduce_mean(tf.square(made - y)) + 0.1 * tf.reduce_mean(tf.square(tf.reverse(made, [0]) - y))
        gradients = tf.gradients(loss, [first, second])
        norm = tf.linalg.global_norm(gradients)
        scale = tf.cond(norm > 0.5, lambda: 0.5 / norm, lambda: tf.ones_like(norm))
        for variable, gradient in zip([first, second], gradients):
            variable.assign_sub(0.1 * scale * gradient)
        return loss, norm, made, tf.reduce_min(tf.argmax(made, 1)), tf.sort(made, 0), mask

    return variables, lambda x, y: step(x, y)


def make_forward():
    """A compiled model, its derivative outside; ints and flags of rows that meet."""
    first, second, turns = variables = make_variables()

    @tf.function(jit_compile=True)
    def model(x):
        centred = tf.tanh(x @ first)
        return (centred - tf.reduce_mean(centred, 0)) @ second, tf.cumsum(tf.cast(x > 0, tf.int32)), x[::-1] > 0

    def step(x, y):
        made, counts, flags = model(x)
        loss = tf.reduce_mean(tf.square(made - y))
        for variable, gradient in zip([first, second], tf.gradients(loss, [first, second])):
            variable.assign_sub(0.1 * gradient)
        turns.assign_add(1)
        return loss, made * 2.0, counts, flags

    return variables, step


def make_masked():
    """What rows a mask chooses only the data tell: their number cannot travel in a compiled function."""
    variables = make_variables()

    @tf.function(jit_compile=True)
    def choose(x):
        chosen = tf.boolean_mask(x, x[:, 0] > 0)
        return tf.reduce_mean(chosen, 0), tf.reduce_max(x, 0)

    return variables, lambda x, y: (*choose(x), tf.reduce_sum(y))


def make_loop():
    """Turns of a loop that is not compiled, each a compiled update; and a branch of which one side is compiled."""
    variables, step = make_step()

    def run(x, y):
        total = tf.constant(0.0, x.dtype)
        for turn in tf.range(3):
            total += step(x, y)[0]
            if turn > 0:
                total += step(x, y)[1]
        return total

    return variables, run


MAKERS = {"loop": make_loop, "step": make_step, "forward": make_forward, "masked": make_masked}


class RankExchanger:
    """Over MPI, with ops that XLA has kernels for."""

    rank = 0  # by which pieces are owned, of which there are none
    sums_early = False

    def exchange(self, requests, batch_slice, *_):
        contributes, made = batch_slice.contributes, []
        for index, (kind, tensor, *_) in enumerate(requests):
            if kind == "sum" and tensor.dtype.is_floating:
                one = ops.reduce_gradients([tensor], [str(index)], tf.cast(contributes, tf.float64), "a test")[0]
            elif kind == "gather":
                rows = tf.cond(contributes, lambda tensor=tensor: tensor, lambda tensor=tensor: tensor[:0])
                one = ops.allgather(rows)
            else:
                dtype = tf.int32 if tensor.dtype.is_bool else tensor.dtype
                given = tf.cast(tensor, dtype)
                neutral = {"sum": 0, "max": dtype.min, "min": dtype.max}[kind]
                given = tf.where(contributes, given, tf.cast(neutral, dtype))
                one = tf.cast(ops.allreduce(given, kind), tensor.dtype)
            one.set_shape(tensor.shape if kind != "gather" else [None, *tensor.shape[1:]])
            made.append(one)
        return made


def trace(step):
    specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in (X, Y)]
    return tf.function(step).get_concrete_function(*specs)


def copy_step(own, exchanger):
    """The copy of a traced step, and its program: a function of the rows, whether they count, and x, y."""
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in own.graph.inputs[:2]]
    program = read_program(own.graph, [BATCH, BATCH] + [WHOLE] * len(own.graph.captures))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.bool), *specs])
    def run(rows, contributes, *arguments):
        first, count, total = tf.unstack(rows)
        batch_slice = Slice(first, count, total, contributes, tf.logical_and(contributes, tf.equal(first, 0)))
        graph = tf.compat.v1.get_default_graph()
        inputs = [*arguments, *(graph.capture(outer) for outer, _ in own.graph.captures)]
        return Copy(batch_slice, exchanger).build(program, inputs)

    return run.get_concrete_function(), program


def has_compiled_calls(graph):
    """Whether an op of a graph, or of a function that it calls, calls a function that XLA compiles."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return any(MUST_COMPILE in node.attr and node.attr[MUST_COMPILE].b for node in nodes)


def _main(folder):
    made = {name: make() for name, make in MAKERS.items()}
    traces = {name: trace(step) for name, (_, step) in made.items()}
    rank, size = world.get_world().rank, world.get_world().size
    counts = [N] if size == 1 else [N - 4, *[0] * (size - 2), 4]
    start = sum(counts[:rank])
    rows = slice(start, start + counts[rank]) if counts[rank] else slice(0, 1)
    found = {}
    for name, own in traces.items():
        copied = copy_step(own, RankExchanger())[0] if size > 1 else None
        assert has_compiled_calls((copied or own).graph), name
        given = tf.constant([rows.start, rows.stop - rows.start, N], tf.int64), tf.constant(counts[rank] > 0)
        for turn in range(STEPS):
            whole = tf.constant(X), tf.constant(Y)
            outputs = copied(*given, *(one[rows] for one in whole)) if copied else own(*whole)
            found.update(
                {f"{name} {turn} {index}": one.numpy() * 1 for index, one in enumerate(tf.nest.flatten(outputs))}
            )
        found.update({f"{name} variable {index}": one.numpy() for index, one in enumerate(made[name][0])})
    np.savez(os.path.join(folder, f"rank-{rank}.npz"), **found)


if __name__ == "__main__":
    _main(sys.argv[1])
