"""Random steps in which rows meet, or figures of all rows meet them, are sharded up to there.

Each is a random expression of weights and rows (`tests/growing.py`), its loss and its gradients. Batches divide, do not
divide, and have fewer rows than ranks.
"""

import corpus_run
import growing
import numpy as np
import tensorflow as tf

SPECS, BATCHES = growing.SPECS, (5, 4, 2, 5)
results: dict = {}
shared: list = []
# Rows meet in each of the usual ones: a gather that goes wrong on the way back is seen in each, and so is a weight.
SEEDS = range(80) if corpus_run.is_all() else (13, 20, 22)


class Grower(growing.Grower):
    """Of float64, and within the sizes that a step may have."""

    def grow(self) -> None:
        for _ in range(growing.NODES):
            kind = growing.KINDS[self.random.integers(len(growing.KINDS))]
            try:
                made = kind(self)
            except (ValueError, TypeError, IndexError, tf.errors.InvalidArgumentError):
                continue
            for one in made if isinstance(made, (list, tuple)) else [made]:
                one = one if one.dtype == tf.float64 else tf.cast(one, tf.float64)
                size = one.shape.rank
                if size is not None and size <= 4 and np.prod([dim or 4 for dim in one.shape]) <= growing.MOST:
                    self.pool.append(one)


def run(seed, chosen=None):
    """Steps of a seed; under ranks with the batches `chosen` that fit its sizes, which the run alone has found."""
    values = np.random.default_rng(seed)
    first, second = tf.Variable(values.normal(size=[2, 2])), tf.Variable(values.normal(size=[4, 4]))
    optimizer = tf.keras.optimizers.SGD(0.1)
    specs = {name: tf.TensorSpec([None, *shape], tf.float64) for name, shape in SPECS.items()}

    @tf.function(input_signature=[*specs.values(), tf.TensorSpec([None], tf.int32)], autograph=False)
    def step(*tensors):
        given = dict(zip([*specs, "ids"], tensors))
        with tf.GradientTape() as tape:
            for name, weights in {"x": first, "v": second, "y": second, "z": second, "c": first[0, 0]}.items():
                given[name] = tf.tanh(given[name] * weights if name == "c" else given[name] @ weights)
            grower = Grower(np.random.default_rng(seed), given)
            grower.grow()
            made = [tf.where(tf.math.is_finite(one), tf.nn.softsign(one), 0.0) for one in grower.pool[-4:]]
            loss = tf.add_n([tf.reduce_sum(one) for one in made]) + tf.reduce_mean(given["x"]) * tf.reduce_mean(
                given["v"]
            )
        found = tape.gradient(loss, [first, second])
        gradients = [tf.where(tf.math.is_finite(one), one, 0.0) for one in found]
        optimizer.apply_gradients(zip(gradients, [first, second]))
        return loss, gradients[0]

    seen, fit = [], []
    for index, rows in enumerate(BATCHES):
        batch = [values.uniform(-1.5, 1.5, [rows, *shape]) for shape in SPECS.values()]
        batch.append(values.integers(0, 4, [rows], np.int32))
        if chosen is not None and index not in chosen:
            continue
        before = first.numpy(), second.numpy()
        try:
            loss, gradient = step(*batch)
        except tf.errors.OpError:
            if chosen is not None:
                raise
            first.assign(before[0]), second.assign(before[1])
            continue
        fit.append(str(index))
        seen += [float(loss), *gradient.numpy().ravel()]
    if not fit:
        return
    results[f"{seed}:{','.join(fit)}"] = np.concatenate([first.numpy().ravel(), second.numpy().ravel(), seen])
    if corpus_run.has_ranks():
        import plans

        shared.append(plans.is_shared(step))


def run_alone():
    # What is no step without optimisations (sizes that do not fit, of zeros) is none.
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for seed in SEEDS:
        run(seed)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


if corpus_run.has_ranks():
    for name in corpus_run.ALONE:
        number, _, chosen = name.partition(":")
        run(int(number), [int(index) for index in chosen.split(",")])
    # So that it does not pass because nothing is sharded.
    whole = shared.count(False)
    corpus_run.expect(whole < 0.2 * len(shared), f"{whole} of {len(shared)} are not sharded")
else:
    run_alone()
