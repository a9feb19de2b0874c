"""Runs of sessions of `tf.compat.v1`, each case in a graph of its own: what is fetched, and all variables.

Also counted are the rows that went through `note`.
"""

from __future__ import annotations

import os
import sys

import corpus_run
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
RANKS = corpus_run.has_ranks()
_random = np.random.RandomState(3)
X, Y = _random.randn(64, 6), _random.randn(64, 2)
IDS = _random.randint(0, 9, [64, 3])
START, SECOND = _random.randn(6, 4), _random.randn(4, 2)
SIZES = (12, 7, 2, 1, 12)
"""Rows of the batches of a case, among them fewer than ranks."""
seen: list[int] = []


def count_rows(rows):
    seen.append(int(rows))
    return np.int64(0)


def note(tensor):
    """The tensor; its rows are counted where it is computed."""
    with tf.control_dependencies([tf.numpy_function(count_rows, [tf.raw_ops.Shape(input=tensor)[0]], tf.int64)]):
        return tf.identity(tensor)


def batches(*arrays):
    first = 0
    for size in SIZES:
        yield [array[first : first + size] for array in arrays]
        first += size


def make_model(use_resource):
    x, y = v1.placeholder(tf.float64, [None, 6]), v1.placeholder(tf.float64, [None, 2])
    first = v1.get_variable("first", initializer=START, use_resource=use_resource)
    second = v1.get_variable("second", initializer=SECOND, use_resource=use_resource)
    hidden = tf.tanh(note(x) @ first)
    answer = hidden @ second
    return x, y, hidden, answer, tf.reduce_mean(tf.square(answer - y)) + 0.01 * tf.nn.l2_loss(second)


def optimize(make, use_resource):
    """An optimizer; what is fetched beside are rows, a figure of all, a variable once it is updated."""

    def case(run):
        x, y, hidden, answer, loss = make_model(use_resource)
        step = v1.train.create_global_step()
        pairs = make().compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
        train = make().apply_gradients(zip(clipped, [variable for _, variable in pairs]), global_step=step)
        with tf.control_dependencies([train]):
            after = [tf.identity(one.read_value()) for one in v1.trainable_variables()]
        run(v1.global_variables_initializer())
        for a, b in batches(X, Y):
            yield run([train, answer, norm, tf.reduce_max(hidden), *after], {x: a, y: b})[1:]
        yield run([loss, hidden, x], {x: X, y: Y})
        yield run([*v1.global_variables()])

    return case


def sparse(make, use_resource):
    """Rows of a table, with rows that are asked for more than once."""

    def case(run):
        ids, y = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float64, [None, 2])
        table = v1.get_variable("table", initializer=np.tile(START[:3], [3, 1]), use_resource=use_resource)
        kernel = v1.get_variable("kernel", initializer=SECOND, use_resource=use_resource)
        found = tf.reduce_mean(tf.nn.embedding_lookup(table, note(ids)), 1)
        loss = tf.reduce_mean(tf.square(found @ kernel - y))
        train = make().minimize(loss)
        run(v1.global_variables_initializer())
        for a, b in batches(IDS, Y):
            yield run([loss, train], {ids: a, y: b})[:1]
        yield run([table, kernel])

    return case


def only_waits(run):
    """What is fetched takes nothing of the update, but waits for it; a later read waits for both."""
    x, y, _, answer, loss = make_model(False)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    count = v1.get_variable("count", initializer=np.float64(0))
    with tf.control_dependencies([train]):
        again = tf.identity(tf.constant(3.0, tf.float64))
        with tf.control_dependencies([v1.assign_add(count, 1)]):
            later = count.read_value() * 2
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        yield run(again, {x: a, y: b}), run(v1.trainable_variables())
        yield run([later, answer], {x: a, y: b})
    yield run(v1.global_variables())


def branches(run):
    """Rows meet branches and nested ones; gradients of one shape are gathered at once for several of them."""
    x, y = v1.placeholder(tf.float64, [None, 6]), v1.placeholder(tf.float64, [None, 2])
    step = v1.placeholder(tf.int32, [])
    kinds = {name: name > "b" or v1.control_flow_v2_enabled() for name in "abc"}  # functions take no references
    names = [v1.get_variable(name, initializer=START[:, :2] * 0.1, use_resource=kinds[name]) for name in "abc"]
    losses = [tf.reduce_mean(tf.square(note(x) @ one - y)) for one in names]

    def update(index):
        make = v1.train.AdamOptimizer(0.05, name=f"adam_{index}")
        return lambda: tf.group(make.minimize(losses[index], var_list=[names[index]]))

    inner = tf.cond(step > 1, lambda: tf.group(update(0)(), tf.cond(step > 2, update(1), tf.no_op)), tf.no_op)
    mean = tf.reduce_mean(x)
    by_rows = tf.cond(mean > 0, lambda: tf.reduce_max(x @ START), lambda: -tf.reduce_sum(y))
    third = v1.train.GradientDescentOptimizer(0.1).minimize(losses[2], var_list=[names[2]])
    run(v1.global_variables_initializer())
    for number, (a, b) in enumerate(batches(X, Y)):
        feed = {x: a, y: b, step: number}
        yield run([inner, third, by_rows], feed)[2:]
        run(inner, {**feed, step: 3})
    yield run(v1.global_variables())


def loops(run):
    """A loop without rows is one of the script's; with rows the run is whole."""
    x, y, _, _, loss = make_model(True)
    turns = tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + 0.1), [0, tf.constant(0.0, tf.float64)])
    train = v1.train.GradientDescentOptimizer(turns[1]).minimize(loss)
    total = tf.while_loop(lambda i, _: i < 3, lambda i, one: (i + 1, one @ SECOND @ SECOND.T), [0, note(x) @ START])
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        yield run([loss, train], {x: a, y: b})[:1]
        yield run(total[1], {x: a})
    yield run(v1.global_variables())


def streaming(run):
    """Moving averages, metrics that are kept in variables, histograms."""
    x, y, hidden, answer, loss = make_model(True)
    averages = v1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True).minimize(loss)]):
        train = averages.apply([*v1.trainable_variables(), loss])
    mean, update = v1.metrics.mean(hidden)
    right, note_right = v1.metrics.accuracy(y[:, 0] > 0, answer[:, 0] > 0)
    counts = tf.histogram_fixed_width(answer, [-2.0, 2.0], 5)
    v1.summary.scalar("loss", loss)
    v1.summary.histogram("hidden", hidden)
    merged = v1.summary.merge_all()
    run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    for a, b in batches(X, Y):
        found = run([train, update, note_right, counts, merged], {x: a, y: b})
        values = v1.Summary.FromString(found[-1]).value
        yield found[1:4], values[0].simple_value, values[1].histo.num, values[1].histo.sum
        yield run([mean, right])
    yield run([*v1.global_variables(), *v1.local_variables()])


def iterators(run):
    """Batches of iterators, one chosen by its handle; what waits for a batch does not run at its end."""
    made = [
        v1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(5))
        for rows in (23, 10)
    ]
    handle = v1.placeholder(tf.string, [])
    types, shapes = (getattr(v1.data, f"get_output_{what}")(made[0]) for what in ("types", "shapes"))
    x, y = v1.data.Iterator.from_string_handle(handle, types, shapes).get_next()
    kernel = v1.get_variable("kernel", initializer=START[:, :2], use_resource=False)
    loss = tf.reduce_mean(tf.square(note(x) @ kernel - y))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    taken = v1.get_variable("taken", initializer=0)
    with tf.control_dependencies([x]):
        count = v1.assign_add(taken, 1)
    run([v1.global_variables_initializer(), *(one.initializer for one in made)])
    handles = [run(one.string_handle()) for one in made]
    for which in (0, 1, 0, 1, 0, 1, 0, 0, 0):
        try:
            yield run([loss, train, count, x], {handle: handles[which]})[::2]
            yield run(x @ kernel, {x: X[:4]})
        except tf.errors.OutOfRangeError:
            yield -1.0
    yield run([taken, kernel])


def draws(run):
    """Masks and noise of all fetches are one sequence, also where a batch has one row; an operation draws once for what
    needs it.
    """
    v1.set_random_seed(11)
    x, y, hidden, answer, loss = make_model(True)
    rows = tf.shape(x)[0]
    kept = v1.nn.dropout(hidden, rate=0.4) + 0.1 * v1.random_normal(tf.shape(hidden), dtype=tf.float64)
    shifts = v1.random_uniform([rows, 1], 0, 5, tf.int32) + tf.cast(v1.truncated_normal([rows, 1]), tf.int32)
    answer = kept @ SECOND + tf.cast(shifts, tf.float64) + v1.random_normal([2], dtype=tf.float64)
    answer += v1.random_shuffle(x)[:, :2] * v1.random_gamma([rows, 1], 2.0, dtype=tf.float64)
    answer += v1.random_uniform(tf.shape(tf.cumsum(answer)), dtype=tf.float64)  # drawn for rows that are gathered
    loss = tf.reduce_mean(tf.square(answer - y))
    train = v1.train.GradientDescentOptimizer(0.05).minimize(loss)
    run(v1.global_variables_initializer())
    for number, (a, b) in enumerate(batches(X[:46], Y[:46])):
        yield run([train, loss], {x: a, y: b})[1:]
        yield run([answer, kept] if number % 2 else answer, {x: a})
    yield run(v1.global_variables())


def functions(run):
    """Calls of `tf.function`, with effects and branches of their own, and variables of theirs."""
    x, y, _, answer, loss = make_model(True)
    total = v1.get_variable("total", initializer=np.zeros(2), use_resource=True)

    @tf.function
    def keep(rows):
        total.assign_add(tf.reduce_sum(rows, 0))
        if tf.reduce_sum(rows) > 0:
            return rows @ tf.transpose(rows)
        return 2 * tf.reduce_mean(rows) * rows @ tf.ones_like(tf.transpose(rows))

    kept = keep(answer)
    train = v1.train.RMSPropOptimizer(0.01).minimize(loss + 1e-3 * tf.reduce_sum(kept))
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        yield run([kept, train], {x: a, y: b})[:1]
        yield run(total)
        yield run(tf.reduce_mean(kept), {x: a})
    yield run(v1.global_variables())


def feeds(run):
    """What is fed in the place of what a graph computes, sparse rows, words, arrays of a size of their own."""
    x, y, hidden, answer, loss = make_model(True)
    words = v1.placeholder(tf.string, [None])
    weights = v1.placeholder(tf.float64, [None])
    fixed = v1.placeholder(tf.float64, [6, 4])
    sparse_rows = v1.sparse_placeholder(tf.float64, [None, 6])
    lengths = tf.cast(tf.strings.length(words), tf.float64)
    weighted = tf.reduce_sum(tf.square(answer - y) * (weights[:, None] + lengths[:, None]))
    train = v1.train.FtrlOptimizer(0.01).minimize(weighted + tf.reduce_mean(note(x) @ fixed))
    by_sparse = tf.sparse.sparse_dense_matmul(sparse_rows, START)
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        texts = np.array([f"w{'o' * index}" for index in range(len(a))], object)
        feed = {x: a, y: b, words: texts, weights: a[:, 0], fixed: START}
        yield run([weighted, train], feed)[:1]
        yield run([answer, tf.reduce_mean(hidden)], {hidden: a[:, :4]})
        yield run(words, {words: texts}).astype(str).tolist() == texts.tolist()
        indices = np.stack([np.arange(len(a)), np.arange(len(a)) % 6], 1)
        yield run([by_sparse, answer], {sparse_rows: (indices, a[:, 0], a.shape), x: a})
    yield run([words, answer], {words: ["a", "bc"], x: X[:2]})[1:]
    yield run([loss, answer], {answer: Y[:8], y: Y[:8]})
    yield run(v1.global_variables())


def queues(run):
    """Batches of a queue are whole on every rank."""
    queue = v1.FIFOQueue(20, [tf.float64, tf.float64], [[6], [2]])
    fill = queue.enqueue_many([X[:20], Y[:20]])
    a, b = queue.dequeue_many(5)
    x, y, _, _, loss = make_model(False)
    other = tf.reduce_mean(tf.square(a @ START @ SECOND - b)) + loss
    train = v1.train.GradientDescentOptimizer(0.1).minimize(other)
    run([v1.global_variables_initializer(), fill])
    for rows, labels in batches(X[20:], Y[20:]):
        if run(queue.size()):
            yield run([other, train], {x: rows, y: labels})[:1]
    yield run(v1.global_variables())


def save(run):
    """What is saved of a graph is the script's, and so is what another session goes on with."""
    x, y, hidden, _, loss = make_model(False)
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    run(v1.global_variables_initializer())
    saver = v1.train.Saver()
    before = v1.get_default_graph().as_graph_def(add_shapes=True)
    yield run([loss, train, hidden], {x: X[:9], y: Y[:9]})[::2]
    after = v1.get_default_graph().as_graph_def(add_shapes=True)
    yield list(after.node) == list(before.node) and after.library == before.library
    saver.save(run.session, os.path.abspath("kept/model"))
    yield run([loss, train], {x: X[9:20], y: Y[9:20]})[:1]
    saver.restore(run.session, os.path.abspath("kept/model"))
    yield run([loss, train], {x: X[9:20], y: Y[9:20]})[:1]
    yield run(v1.global_variables())
    with tf.Graph().as_default(), v1.Session() as other:
        again = v1.train.import_meta_graph("kept/model.meta")
        again.restore(other, "kept/model")
        feed = {x.name: X[9:20], y.name: Y[9:20]}
        yield other.run([loss.name, train.name], feed)[0], other.run(loss.name, feed)


def shares(run):
    """Each rank feeds its own rows, some of another dtype than the graph's; a rank may have none."""
    x, y, _, answer, loss = make_model(True)
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    take = sys.modules["matex_tf"].shard if RANKS else np.asarray
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        yield run([loss, answer, train], {x: take(a), y: take(b.astype(np.float32))})[:2]
    yield run(v1.global_variables())


def refused_shares(run):
    """Rows of one rank alone where every rank would compute a run by itself: an error on every rank."""
    fixed = v1.placeholder(tf.float64, [8, 6])
    answer = fixed @ START
    try:
        run(answer, {fixed: sys.modules["matex_tf"].shard(X[:8], own=True)})
    except sys.modules["matex_tf"].UnsupportedError as error:
        yield len(str(error)) > 0
    mine = sys.modules["matex_tf"].shard(X[:8], own=True)
    rows = tf.data.Dataset.from_tensor_slices(X[:8]).batch(2)
    for make in (
        lambda: tf.constant(mine),
        lambda: tf.data.Dataset.from_tensor_slices(mine),
        lambda: sys.modules["matex_tf"].shard(rows),
    ):
        try:
            make()
            yield False
        except sys.modules["matex_tf"].UnsupportedError as error:
            yield bool(str(error))


def unseeded(run):
    """Initial values, noise and masks that each process draws by itself, and values that each rank loads."""
    x, y, hidden, _, _ = make_model(True)
    kernel = v1.get_variable("kernel", [4, 2], tf.float64, v1.random_normal_initializer())
    answer = v1.nn.dropout(hidden, rate=0.3) @ kernel + v1.random_normal([2], dtype=tf.float64)
    classes = tf.cast(y[:, :1] > 0, tf.int64)
    chosen = [
        tf.random.log_uniform_candidate_sampler(classes, 1, 2, True, 4).sampled_candidates,
        tf.random.uniform_candidate_sampler(classes, 1, 2, False, 4).sampled_candidates,
    ]
    answer += tf.reduce_sum(tf.gather(kernel, tf.concat(chosen, 0)), 0)
    train = v1.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.square(answer - y)))
    for number in range(2):
        run(v1.global_variables_initializer())
        for a, b in batches(X, Y):
            if len(a) > 1:
                yield run([train, answer], {x: a, y: b})[1:]
        yield run(v1.global_variables())
        kernel.load(SECOND + sys.modules["matex_tf"].rank() + number, run.session)
        yield run([train, answer], {x: X[:9], y: Y[:9]})[1:]
        yield run(v1.global_variables())


def own_collectives(run):
    """Collectives of the script, of which no one waits for another, and in branches, in one run."""
    matex_tf = sys.modules["matex_tf"]
    x, y, _, _, loss = make_model(True)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    sums = [matex_tf.allreduce(number * tf.reduce_sum(x), "sum") for number in range(8)]
    positive = tf.reduce_sum(y) > 0
    called = tf.function(lambda: matex_tf.allreduce(loss, "sum"), autograph=False)
    some = tf.cond(positive, lambda: matex_tf.allreduce(loss, "mean"), lambda: -loss)
    each = tf.cond(
        positive, lambda: matex_tf.allreduce(loss, "mean"), lambda: called() + matex_tf.allreduce(loss, "max")
    )
    last = [some, each, matex_tf.allreduce(each, "min")]
    # One collective, which runs in a branch within a function before another one, and after it.
    mean = tf.function(lambda value: matex_tf.allreduce(value, "mean"), autograph=False)
    chosen = tf.switch_case(tf.cast(positive, tf.int32), [lambda: mean(loss), lambda: loss])
    again = mean(matex_tf.allreduce(chosen, "mean"))
    run(v1.global_variables_initializer())
    for a, b in batches(X, Y):
        found = run([*sums, *last, train], {x: a, y: b})[:-1]
        yield found, max(abs(found[1] * number - found[number]) for number in range(8)) < 1e-9
        yield run(again, {x: a, y: b})
    yield run(v1.global_variables())


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, centered=True),
}
CASES = {
    **{f"{name} {kind}": optimize(make, kind == "resource") for name, make in OPTIMIZERS.items()
       for kind in ("resource", "reference")},
    **{f"sparse {name} {kind}": sparse(OPTIMIZERS[name], kind == "resource") for name in ("sgd", "adam")
       for kind in ("resource", "reference")},
    **{one.__name__: one for one in (only_waits, branches, loops, streaming, iterators, draws, functions, feeds, queues,
                                     shares, save)},
}  # fmt: skip
MORE = {
    *(f"{name} {kind}" for name in ("momentum", "adagrad", "rmsprop") for kind in ("resource", "reference")),
    "adam reference",
    "sgd resource",
    "sparse sgd resource",
    "sparse adam reference",
}
"""Those that are run when all are."""
OF_RANKS = {one.__name__: one for one in (unseeded, own_collectives, refused_shares)}
"""Cases of which only ranks say the same: alone they are another each time, or there are none."""
FIRST_CONTROL_FLOW = ("branches", "loops")
"""Those that run with the control flow of TensorFlow 1, too."""
PARTLY = ("loops of TensorFlow 1",)
"""Cases of which some runs are whole."""


class Run:
    def __init__(self, session):
        self.session = session

    def __call__(self, fetches, feed=None):
        return self.session.run(fetches, feed)


def run_case(case):
    seen.clear()
    with tf.Graph().as_default(), v1.Session() as session:
        found = list(case(Run(session)))
    return [np.asarray(one) for one in tf.nest.flatten(found)], sum(seen)


def gather(values):
    """What each rank has found, as texts."""
    from matex_tf.runtime import objects

    return objects.allgather([repr(value.tolist()) for value in values], "what all ranks have found")


results = {}
if RANKS:
    import plans

    plans.leave_python_as_it_is()
for name, case in CASES.items():
    if not corpus_run.is_due(name, MORE):
        continue
    for flow in (True, False) if name in FIRST_CONTROL_FLOW else (True,):
        (v1.enable_control_flow_v2 if flow else v1.disable_control_flow_v2)()
        values, rows = run_case(case)
        full = name if flow else f"{name} of TensorFlow 1"
        if full not in PARTLY:
            results[f"{full}: rows"] = np.array(rows)
        results |= {f"{full}|{index}": value for index, value in enumerate(values)}
v1.enable_control_flow_v2()
for name, case in OF_RANKS.items() if RANKS else ():
    values, _ = run_case(case)
    everywhere = gather(values)
    corpus_run.expect(all(one == everywhere[0] for one in everywhere), f"{name}: ranks have found different values")
    corpus_run.expect(values and all(np.isfinite(one).all() and one.size for one in values), f"{name}: {values}")
    if name != "unseeded":
        corpus_run.expect(all(one for one in values if one.dtype == bool), f"{name}: {values}")
