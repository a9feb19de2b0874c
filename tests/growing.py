"""Random functions of a batch, of the ops that scripts use, for tests that run them on ranks.

Sizes are chosen to collide: 4 rows on ranks that have 2, or 3 and 1, or 1, 1 and 2, beside dimensions of 2 and 4.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

GRAPHS, NODES, MOST = 12, 8, 64
SPLITS = ((2, 2), (3, 1), (1, 1, 2), (4, 0), (2, 0, 2))
SPECS = {"x": [2], "y": [4], "z": [2, 4], "c": [], "v": [4]}


@tf.function
def _nested(one, other):
    return tf.tanh(one), tf.reduce_sum(other, 0), tf.reduce_mean(one) * 0.5, tf.boolean_mask(one, other[..., 0] > 0)


class Grower:
    """One random expression, grown within the graph that is traced.

    Args:
        arguments: the rows, by name; all float64 but `ids`, whole numbers below 4.
    """

    def __init__(self, random: np.random.Generator, arguments: dict[str, tf.Tensor]):
        self.random, self.arguments = random, arguments
        self.rows = tf.shape(arguments["x"])[0]
        names = [name for name in arguments if name != "ids"]
        self.pool = [arguments[name] for name in names] + [tf.constant(random.normal(size=[2, 4]))]

    def one(self) -> tf.Tensor:
        """A tensor, more likely one that was made last."""
        recent = self.random.random() < 0.5
        return self.pool[-1 - self.random.integers(min(4, len(self.pool)))] if recent else self.pick(self.pool)

    def pick(self, some):
        return some[self.random.integers(len(some))]

    def axis(self, one: tf.Tensor) -> int:
        return int(self.random.integers(-one.shape.rank, one.shape.rank))

    def dims(self, one: tf.Tensor) -> list:
        """Its sizes, where they are not fixed as tensors."""
        return [tf.shape(one)[index] if size is None else size for index, size in enumerate(one.shape)]

    def mask(self) -> tf.Tensor:
        one = self.pick(["v", "c", "v"])
        return self.arguments[one][:, 0] > 0 if one == "v" else self.arguments[one] > 0


def _unary(g):
    one = g.one()
    return g.pick([tf.tanh, tf.negative, tf.abs, tf.nn.relu, tf.square, tf.identity, tf.stop_gradient, tf.sigmoid,
                   tf.sign, tf.round, tf.zeros_like, tf.ones_like, tf.nn.l2_loss])(one)  # fmt: skip


def _along(g):
    one = g.one()
    axis = g.axis(one)
    kind = g.pick(["softmax", "log", "cumsum", "cumprod", "reverse", "roll", "sort", "argsort", "normalize"])
    if kind == "softmax":
        return tf.nn.softmax(one, axis)
    if kind == "log":
        return tf.nn.log_softmax(one, axis)
    if kind == "cumsum":
        return tf.cumsum(one, axis, exclusive=bool(g.random.integers(2)))
    if kind == "cumprod":
        return tf.math.cumprod(one, axis, exclusive=True)
    if kind == "reverse":
        return tf.reverse(one, [axis])
    if kind == "roll":
        return tf.roll(one, 1, axis)
    if kind == "sort":
        return tf.sort(one, axis)
    if kind == "argsort":
        return tf.argsort(one, axis)
    return tf.math.l2_normalize(one, axis)


def _binary(g):
    return g.pick([tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum, tf.math.divide_no_nan,
                   tf.math.squared_difference, tf.multiply, tf.add])(g.one(), g.one())  # fmt: skip


def _scaled(g):
    one = g.one()
    return g.pick([lambda: one * 0.5, lambda: one + 1.0, lambda: 1.0 - one, lambda: one / 2.0])()


def _reduced(g):
    one = g.one()
    axes = [axis for axis in range(one.shape.rank) if g.random.integers(2)] if g.random.integers(4) else None
    kind = g.pick([tf.reduce_sum, tf.reduce_mean, tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min,
                   tf.reduce_prod, tf.reduce_logsumexp, tf.math.reduce_euclidean_norm])  # fmt: skip
    return kind(one, axes, keepdims=bool(g.random.integers(2)))


def _reshaped(g):
    one = g.one()
    n = g.pick([g.rows, g.rows, tf.shape(one)[0] if one.shape.rank else g.rows, g.rows * 2, 4, 2])
    last = one.shape[-1] or 2 if one.shape.rank else 1
    rest = int(np.prod([size or 1 for size in one.shape[1:]]))
    shape = g.pick([[-1], [-1, last], [n, -1], [n, rest], [1, n, -1], [n, 1, -1], [-1, 2], [-1, 4], [2, -1], [n, 2, -1],
                    [-1, 1], [n], [1, -1], [2, n, -1], [n, -1, 2], g.dims(one) + [1], [1] + g.dims(one),
                    [-1] + g.dims(one)[1:]])  # fmt: skip
    return tf.reshape(one, shape)


def _moved(g):
    one = g.one()
    kind = g.random.integers(6)
    if kind < 2:
        return tf.transpose(one, g.random.permutation(one.shape.rank))
    if kind == 2:
        return tf.expand_dims(one, g.axis(one) if one.shape.rank else 0)
    if kind == 3:
        return tf.squeeze(one, [g.axis(one)]) if g.random.integers(2) else tf.squeeze(one)
    if kind == 4:
        return tf.tile(one, [g.pick([1, 1, 2, g.rows]) for _ in range(one.shape.rank)])
    return tf.broadcast_to(one, [g.pick([g.rows, 2, 4]), *g.dims(one)[g.random.integers(2) :]])


def _product(g):
    one, other = g.one(), g.one()
    if g.random.integers(2):
        return tf.matmul(one, other, transpose_a=bool(g.random.integers(2)), transpose_b=bool(g.random.integers(2)))
    equation = g.pick(["ij,jk->ik", "ij,ik->jk", "ij,ij->i", "ij,kj->ik", "ij,ij->", "i,ij->j", "i,ij->ij", "ijk,ij->k",
                       "ijk,kl->ijl", "...j,...j->...", "i,j->ij", "ijk,ilk->ijl"])  # fmt: skip
    return tf.einsum(equation, one, other)


def _joined(g):
    one, other = g.one(), g.one()
    kind = g.random.integers(5)
    if kind < 2:
        return tf.concat([one, other] if g.random.integers(2) else [one, tf.tanh(one)], g.axis(one))
    if kind == 2:
        return tf.stack([one, other if g.random.integers(2) else tf.tanh(one)], g.axis(one))
    if kind == 3:
        return tf.unstack(one, axis=g.axis(one))[:2]
    return tf.split(one, 2, g.axis(one)) if one.shape.rank else one


def _sliced(g):
    one, n = g.one(), g.rows
    return g.pick([lambda: one[0], lambda: one[:1], lambda: one[:, :1], lambda: one[1:], lambda: one[..., 0],
                   lambda: one[:n], lambda: one[: n // 2], lambda: one[n:], lambda: one[::-1], lambda: one[:, ::-1],
                   lambda: one[tf.newaxis], lambda: one[:, tf.newaxis], lambda: one[..., :n], lambda: one[:, :n],
                   lambda: one[n : 2 * n], lambda: one[0:], lambda: one[:4], lambda: one[:2], lambda: one[..., 1:],
                   lambda: one[: tf.shape(one)[0]], lambda: one[0:n, 1:], lambda: one[:, 0:1, tf.newaxis],
                   lambda: tf.slice(one, [0] * one.shape.rank, [n, *[-1] * (one.shape.rank - 1)]),
                   lambda: tf.slice(one, [0] * one.shape.rank, [-1, *[2] * (one.shape.rank - 1)]),
                   lambda: tf.slice(one, [n, *[0] * (one.shape.rank - 1)], [-1] * one.shape.rank)])()  # fmt: skip


def _gathered(g):
    one, ids = g.one(), g.arguments["ids"]
    numbers = g.pick(
        [
            ids,
            ids,
            tf.constant([0, 1]),
            tf.range(g.rows),
            tf.where(g.mask())[:, 0],
            tf.constant(1),
            tf.stack([ids, 1 - ids // 2], 1),
            tf.range(g.rows // 2),
            tf.range(2 * g.rows),
            -tf.range(g.rows),
        ]
    )
    kind = g.random.integers(5)
    if kind < 3:
        return tf.gather(one, numbers, axis=g.axis(one))
    if kind == 3:
        return tf.gather(one, tf.minimum(ids, 1), axis=1, batch_dims=1)
    return tf.gather_nd(one, numbers[:, tf.newaxis])


def _chosen(g):
    one, mask = g.one(), g.mask()
    kind = g.random.integers(6)
    if kind == 0:
        return tf.boolean_mask(one, mask)
    if kind == 1:
        return tf.boolean_mask(one, mask) * tf.boolean_mask(tf.tanh(g.one()), g.pick([mask, g.mask(), g.mask()]))
    if kind == 2:
        return tf.where(g.one() > 0, one, g.one())
    if kind == 3:
        return tf.where(mask, one, tf.zeros_like(one))
    if kind == 4:
        return tf.boolean_mask(one, one > 0)
    return tf.raw_ops.Select(condition=mask, x=one, y=tf.tanh(one))


def _whole_numbers(g):
    one = g.one()
    ids = g.arguments["ids"]
    return g.pick(
        [
            lambda: tf.one_hot(ids, 4, dtype=tf.float64),
            lambda: tf.one_hot(ids, 4, axis=0, dtype=tf.float64),
            lambda: tf.argmax(one, g.axis(one)),
            lambda: tf.math.top_k(one, 2).values,
            lambda: tf.cast(one > 0, tf.float64),
            lambda: tf.cast(one * 3, tf.int32),
            lambda: ids - 2,
            lambda: tf.math.unsorted_segment_sum(one, ids, 4),
            lambda: tf.math.bincount(ids, minlength=4),
            lambda: tf.scatter_nd(ids[:, tf.newaxis], one, [4, *one.shape[1:]]),
            lambda: tf.math.segment_sum(one, [0, 0, 1, 1]),
            lambda: tf.cast(ids, tf.bool),
            lambda: tf.reduce_mean(ids),
            lambda: tf.cast(tf.reduce_sum(ids), tf.bool),
            lambda: tf.cast(tf.range(g.rows), tf.float64),
            lambda: ids[:, tf.newaxis] + tf.range(2),
            lambda: tf.unique(ids).y,
            lambda: tf.cast(tf.range(g.rows), tf.float64)[:, tf.newaxis] * one,
        ]
    )()


def _counted(g):
    one, n = g.one(), g.rows
    rows, size = tf.cast(n, tf.float64), tf.cast(tf.size(one), tf.float64)
    last = tf.shape(one)[-1] if one.shape.rank else tf.constant(1)
    return g.pick([lambda: one / rows, lambda: tf.reduce_sum(one, 0) / rows, lambda: tf.reduce_sum(one) / size,
                   lambda: rows, lambda: tf.shape(one), lambda: n // 2, lambda: -n, lambda: n * 2 - n, lambda: size,
                   lambda: n % 2, lambda: tf.maximum(n, 2), lambda: (n * last) // last, lambda: n * last // 2,
                   lambda: tf.shape(tf.boolean_mask(one, g.mask())), lambda: one * rows, lambda: 1.0 / rows,
                   lambda: rows / tf.cast(last, tf.float64), lambda: tf.cast(rows / 2.0, tf.int32), lambda: n / n,
                   lambda: tf.divide(last, 2) * 2, lambda: tf.reduce_prod(tf.shape(one)), lambda: tf.size(one) // n,
                   lambda: tf.reduce_sum(tf.boolean_mask(one, g.mask())), lambda: -last, lambda: tf.cast(n, tf.bool),
                   lambda: tf.cast(n * 100, tf.int8), lambda: tf.reduce_mean(tf.shape(one))])()  # fmt: skip


def _filled(g):
    n, one = g.rows, g.one()
    return g.pick([lambda: tf.zeros([n, 2], tf.float64), lambda: tf.ones([2, n], tf.float64),
                   lambda: tf.fill([n, 2], tf.reduce_max(g.pool[-1])), lambda: tf.zeros([n // 2, 2], tf.float64),
                   lambda: tf.ones([4, 2], tf.float64), lambda: tf.fill([n], 1.0 / tf.cast(n, tf.float64)),
                   lambda: tf.eye(n, dtype=tf.float64), lambda: tf.zeros([2 * n], tf.float64),
                   lambda: tf.pad(one, [[0, 0]] * (one.shape.rank - 1) + [[0, 1]], constant_values=1.0),
                   lambda: tf.pad(tf.zeros_like(one), [[0, 0]] * (one.shape.rank - 1) + [[0, 1]], constant_values=1.0),
                   lambda: tf.pad(one, [[1, 0]] + [[0, 0]] * (one.shape.rank - 1)),
                   lambda: tf.concat([tf.zeros([n, 1]), tf.ones([n, 1])], 0),
                   lambda: tf.concat([one, tf.zeros(tf.shape(one), tf.float64)], 0)])()  # fmt: skip


def _controlled(g):
    one, other = g.one(), g.one()
    kind = g.random.integers(9)
    if kind < 2:
        other = other if one.shape.rank == other.shape.rank else tf.tanh(one) + 1.0
        if kind == 1:
            return tf.cond(tf.constant(True), lambda: one * 2, lambda: tf.tanh(other))
        return tf.cond(tf.reduce_sum(g.pool[-1]) > 0, lambda: one, lambda: other)
    if kind == 2:
        return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.tanh(a + other)), [0, one])[1]
    if kind == 3:
        return tf.while_loop(lambda i, *_: i < 2, lambda i, a, b: (i + 1, b, tf.tanh(a)), [0, one, other])[1:]
    if kind == 4:
        total = tf.zeros(one.shape[1:], tf.float64)
        return tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + tf.reduce_mean(one, 0)), [0, total])[1]
    if kind == 5:
        return tf.map_fn(lambda part: tf.tanh(part) * 2, one)
    if kind == 6:
        array = tf.TensorArray(tf.float64, 2)
        made = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a.write(i, one[:, i])), [0, array])[1]
        return made.stack()
    if kind == 7:
        return list(_nested(one, other)) + list(_nested(other, one))
    mask = tf.boolean_mask(one, g.mask())
    return tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, tf.boolean_mask(a, a > 0)), [0, mask],
                         shape_invariants=[tf.TensorShape([]), tf.TensorShape(None)])[1]  # fmt: skip


KINDS = [_unary, _along, _binary, _binary, _scaled, _reduced, _reduced, _reshaped, _reshaped, _moved, _moved, _product,
         _joined, _joined, _sliced, _sliced, _gathered, _chosen, _chosen, _whole_numbers, _counted, _counted, _filled,
         _controlled]  # fmt: skip


def grow(seed: int, graphs: int = GRAPHS):
    """A random function, its arguments, and how to cut them. It returns every tensor that was grown, and gradients.

    Each step is tried at once on the whole batch, and left out where it fails: scripts work alone.
    """
    random = np.random.default_rng(seed)
    values = {name: random.uniform(-1.5, 1.5, [4, *shape]) for name, shape in SPECS.items()}
    values["ids"] = random.integers(0, 4, [4], np.int32)
    weights = random.normal(size=[graphs, 2, 4])

    def run(tensors, keep):
        made = []
        for expression in range(graphs):
            arguments = dict(zip(values, tensors))
            named = [one for name, one in arguments.items() if name != "ids"]
            with tf.GradientTape(persistent=True) as tape:
                weight = tf.constant(weights[expression])
                tape.watch([*named, weight])
                grower = Grower(np.random.default_rng([seed, expression]), arguments)
                grower.pool = [*named, weight]
                for step in range(NODES):
                    keep.step(grower, (expression, step), np.random.default_rng([seed, expression, step]))
                ends = [tf.reduce_sum(one) for one in grower.pool[-3:]]
            made += grower.pool[len(named) + 1 :]
            for index, end in enumerate(ends):
                made += keep.differentiate(tape, end, [*named, weight], (expression, index))
        return made

    banned: set[tuple[int, int]] = set()
    while True:
        first = _Trying(banned)
        run([tf.constant(one) for one in values.values()], first)

        def function(*tensors, first=first):
            return run(tensors, _Repeating(first))

        specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in values.values()]
        try:
            tf.function(function, autograph=False).get_concrete_function(*specs)
            break
        except _BanError as error:  # it needs to know how many rows there are
            banned.add(error.key)

    return function, list(values.values()), SPLITS[seed % len(SPLITS)]


FAILURES = (ValueError, TypeError, IndexError, LookupError, AssertionError, tf.errors.OpError)


class _BanError(Exception):
    def __init__(self, key):
        super().__init__()
        self.key = key


class _Trying:
    """At once: what works, and what fits."""

    def __init__(self, banned):
        self.banned = banned
        self.steps: dict[tuple[int, int], list[bool]] = {}
        self.ends: set[tuple[int, int]] = set()

    def step(self, grower, key, random):
        if key in self.banned:
            return
        grower.random = random
        kind = KINDS[random.integers(len(KINDS))]
        try:
            made = _list(kind(grower))
        except FAILURES:
            return
        self.steps[key] = [one.shape.rank <= 4 and one.shape.num_elements() <= MOST for one in made]
        grower.pool += [one for one, fits in zip(made, self.steps[key]) if fits]

    def differentiate(self, tape, end, sources, key):
        try:
            found = _differentiate(tape, end, sources)
        except FAILURES:
            return []
        if (*key, "end") in self.banned:
            return []
        self.ends.add(key)
        return found


class _Repeating:
    """In a graph: the same again."""

    def __init__(self, first):
        self.first = first

    def step(self, grower, key, random):
        if key not in self.first.steps:
            return
        grower.random = random
        try:
            made = _list(KINDS[random.integers(len(KINDS))](grower))
        except FAILURES as error:
            raise _BanError(key) from error
        grower.pool += [one for one, fits in zip(made, self.first.steps[key]) if fits]

    def differentiate(self, tape, end, sources, key):
        try:
            return _differentiate(tape, end, sources) if key in self.first.ends else []
        except FAILURES as error:
            raise _BanError((*key, "end")) from error


def _list(made):
    return [one if one.dtype == tf.float64 else tf.cast(one, tf.float64)
            for one in (made if isinstance(made, (list, tuple)) else [made])]  # fmt: skip


def _differentiate(tape, end, sources):
    found = tape.gradient(end, sources, unconnected_gradients="zero")
    return [tf.convert_to_tensor(one) for one in found]
