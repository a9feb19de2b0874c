"""Small models in every style: losses and figures that a person would see, weights, and rows that training computes."""

import corpus_run
import keras
import numpy as np
import tensorflow as tf

EPOCHS = 5
BATCH = 16


class CountRows(keras.layers.Layer):
    """Passes its input on and notes how many rows pass through in training."""

    seen = []

    def call(self, inputs, training=None):
        if not training:
            return inputs

        def note(rows):
            CountRows.seen.append(int(rows))
            return np.int64(0)

        noted = tf.numpy_function(note, [tf.raw_ops.Shape(input=inputs)[0]], tf.int64)  # no constant
        with tf.control_dependencies([noted]):
            return tf.identity(inputs)


def data(rows):
    generator = np.random.RandomState(7)
    return generator.rand(rows, 6, 6, 1), generator.randint(0, 3, rows)


def branches(x):
    """Batch normalisation in parallel branches, whose collectives must come in one order on all ranks."""
    parts = [
        keras.layers.BatchNormalization(momentum=0.9)(keras.layers.Conv2D(2, size, padding="same", use_bias=False)(x))
        for size in (1, 2, 3)
    ]
    return keras.layers.Flatten()(keras.layers.Activation("tanh")(keras.layers.Concatenate()(parts)))


def model_of(kind):
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(11)
    if kind == "normal":
        inputs = keras.Input((6, 6, 1))
        return keras.Model(inputs, keras.layers.Dense(3)(branches(CountRows()(inputs))))
    inside = {
        "dense": [keras.layers.Flatten(), keras.layers.Dense(8, activation="tanh")],
        "conv": [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()],
        "average": [keras.layers.Conv2D(4, 3, activation="tanh"), keras.layers.GlobalAveragePooling2D()],
    }[kind]
    return keras.Sequential([keras.Input((6, 6, 1)), CountRows(), *inside, keras.layers.Dense(3)])


def optimizer_of(name):
    return {
        "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01),
        "rmsprop": lambda: keras.optimizers.RMSprop(0.005),
    }[name]()


def loss_of():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit_arrays(kind, optimizer, rows):
    x, y = data(rows)
    model = model_of(kind)
    model.compile(optimizer_of(optimizer), loss_of(), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x[:9], y[:9])).history
    history["evaluate"] = model.evaluate(x, y, batch_size=10, verbose=0)
    return [history[name] for name in sorted(history)], model.get_weights()


def dataset_of(rows):
    x, y = data(rows)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(rows, seed=5).batch(BATCH)


def fit_dataset(kind, optimizer, rows):
    model = model_of(kind)
    model.compile(optimizer_of(optimizer), loss_of(), metrics=["accuracy"])
    history = model.fit(dataset_of(rows), epochs=EPOCHS, verbose=0).history
    history["evaluate"] = model.evaluate(dataset_of(rows), verbose=0)
    return [history[name] for name in sorted(history)], model.get_weights()


def loop(kind, optimizer, rows, style):
    model, loss_fn, chosen = model_of(kind), loss_of(), optimizer_of(optimizer)
    accuracy, average = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        if style == "apply" and hasattr(chosen, "apply"):
            chosen.apply(gradients, model.trainable_variables)
        else:
            chosen.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, logits)
        average.update_state(loss)
        return loss

    if style != "eager":
        step = tf.function(step)

    @tf.function
    def epoch(batches):
        last = tf.constant(0.0, tf.float64)
        for x, y in batches:
            last = step(x, y)
        return last

    seen = []
    batches = dataset_of(rows)
    for _ in range(EPOCHS):
        accuracy.reset_state()
        average.reset_state()
        if style == "inside":
            seen.append(float(epoch(batches)))
        else:
            for x, y in batches:
                seen.append(float(step(x, y)))
        seen += [float(accuracy.result()), float(average.result())]
    test = keras.metrics.SparseCategoricalAccuracy()
    for x, y in batches:
        test.update_state(y, model(x, training=False))
    return [*seen, float(test.result())], model.get_weights()


def session(optimizer, rows):
    v1 = tf.compat.v1
    x_all, y_all = data(rows)
    x_all, y_all = x_all.reshape(rows, -1), np.eye(3)[y_all]
    with tf.Graph().as_default(), v1.Session() as sess:
        v1.set_random_seed(3)
        x = v1.placeholder(tf.float64, [None, 36])
        y = v1.placeholder(tf.float64, [None, 3])

        def note(rows):
            CountRows.seen.append(int(rows))
            return np.int64(0)

        with tf.control_dependencies([tf.numpy_function(note, [tf.raw_ops.Shape(input=x)[0]], tf.int64)]):
            hidden = tf.identity(x)
        image = tf.reshape(hidden, [-1, 6, 6, 1])
        kernel = v1.get_variable("kernel", [3, 3, 1, 4], tf.float64, v1.random_normal_initializer(stddev=0.3))
        features = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "VALID")), 2, 2, "VALID")
        flat = tf.reshape(features, [-1, 16])
        weights = v1.get_variable("weights", [16, 3], tf.float64, v1.random_normal_initializer(stddev=0.3))
        bias = v1.get_variable("bias", [3], tf.float64, v1.zeros_initializer())
        logits = tf.matmul(flat, weights) + bias
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), tf.float64))
        chosen = {
            "sgd": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
            "adam": lambda: v1.train.AdamOptimizer(0.01),
            "rmsprop": lambda: v1.train.RMSPropOptimizer(0.005),
            "plain": lambda: v1.train.GradientDescentOptimizer(0.1),
        }[optimizer]()
        train = chosen.minimize(loss)
        sess.run(v1.global_variables_initializer())
        seen = []
        for _ in range(EPOCHS):
            for start in range(0, rows, BATCH):
                feed = {x: x_all[start : start + BATCH], y: y_all[start : start + BATCH]}
                _, value, part, of_rows = sess.run([train, loss, accuracy, logits], feed)
                seen += [value, part, *of_rows.reshape(-1)]
        counted = list(CountRows.seen)
        seen += sess.run([loss, accuracy], {x: x_all, y: y_all})
        CountRows.seen[:] = counted
        return seen, sess.run([kernel, weights, bias])


def cases():
    """Every case by its name. 69 rows leave a last batch of 5, 65 one of 1."""
    optimizers = ("sgd", "adam", "adamw", "rmsprop")
    found = {}
    for optimizer in optimizers:
        found[f"fit arrays conv {optimizer} 69"] = lambda o=optimizer: fit_arrays("conv", o, 69)
        found[f"loop function conv {optimizer} 65"] = lambda o=optimizer: loop("conv", o, 65, "function")
    for kind, optimizer, rows in (("dense", "adam", 65), ("average", "rmsprop", 69), ("normal", "sgd", 65)):
        found[f"fit dataset {kind} {optimizer} {rows}"] = lambda a=(kind, optimizer, rows): fit_dataset(*a)
    found["fit dataset conv adamw 65"] = lambda: fit_dataset("conv", "adamw", 65)
    found["loop function normal adam 69"] = lambda: loop("normal", "adam", 69, "function")
    for style in ("eager", "apply", "inside"):
        for kind, optimizer, rows in (("dense", "adam", 69), ("conv", "sgd", 65), ("normal", "sgd", 65)):
            found[f"loop {style} {kind} {optimizer} {rows}"] = lambda a=(kind, optimizer, rows, style): loop(*a)
    for optimizer in ("sgd", "adam", "rmsprop", "plain"):
        for rows in (69, 65):
            found[f"session {optimizer} {rows}"] = lambda a=(optimizer, rows): session(*a)
    return found


if corpus_run.has_ranks():
    import plans

    plans.leave_python_as_it_is()
results = {}
for name, case in cases().items():
    CountRows.seen.clear()
    seen, weights = case()
    results[f"{name}|seen"] = np.concatenate([np.ravel(value) for value in seen])
    results[f"{name}|steps"] = np.array(len(CountRows.seen))
    results[f"{name}: rows"] = np.array(sum(CountRows.seen))
    results |= {f"{name}|weight {index}": weight for index, weight in enumerate(weights)}
