"""`predict` and `evaluate` on every kind of data and model: each rank computes a part and gets the whole answer.

Rows really computed are counted in the graph, so that a `predict` that each rank computes whole is seen.
"""

import threading

import corpus_run
import numpy as np
import tensorflow as tf

keras = tf.keras
keras.utils.set_random_seed(1)
keras.backend.set_floatx("float64")
computed = [0]
if corpus_run.has_ranks():
    import plans

    plans.leave_python_as_it_is()


def note(rows):
    computed[0] += int(rows)
    return np.int64(0)


x = np.random.default_rng(1).random((23, 3))
y = np.random.default_rng(2).random((23, 2))
results = {}


@keras.utils.register_keras_serializable("cases")
class Counted(keras.layers.Layer):
    def call(self, inputs):
        with tf.control_dependencies([tf.numpy_function(note, [tf.raw_ops.Shape(input=inputs)[0]], tf.int64)]):
            return inputs * 2.0

    def compute_output_shape(self, shape):
        return shape


def stored(name, outputs):
    for index, part in enumerate(tf.nest.flatten(outputs)):
        results[f"{name}|{index}"] = np.asarray(part)
    results[f"{name}: rows"] = np.array(computed[0])
    computed[0] = 0


inputs = keras.layers.Input((3,))
hidden = Counted()(inputs)
one = keras.Model(inputs, keras.layers.Dense(2)(hidden))
two = keras.Model(inputs, {"a": keras.layers.Dense(2)(hidden), "b": keras.layers.Reshape((3, 1))(hidden)})
second = keras.layers.Input((2,))
many = keras.Model([inputs, second], keras.layers.Dense(2)(keras.layers.Concatenate()([hidden, second])))
one.compile("sgd", "mse", metrics=["mae"])


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.count, self.dense = Counted(), keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.count(inputs))


class Classes(Own):
    def predict_step(self, data):
        data = data[0] if isinstance(data, tuple) else data
        return tf.argmax(self(data, training=False), axis=-1, output_type=tf.int32)


class Twice(Own):
    def call(self, inputs):
        return tf.repeat(super().call(inputs), 2, axis=0)


class Summary(Own):
    def call(self, inputs):
        return tf.reduce_sum(super().call(inputs), axis=0, keepdims=True)


class Hidden(Own):
    def call(self, inputs):
        found = super().call(inputs)
        return tf.boolean_mask(found, found[:, 0] > tf.reduce_mean(found[:, 0]))


def batches():
    for start in range(0, 23, 6):
        yield (x[start : start + 6],)


class Sequence(keras.utils.Sequence):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return x[6 * index : 6 * index + 6], y[6 * index : 6 * index + 6]


quiet = {"verbose": 0}
stored("arrays", one.predict(x, batch_size=7, **quiet))
stored("one batch", one.predict(x, batch_size=64, **quiet))
stored("again", one.predict(x, batch_size=7, **quiet))
stored("one row", one.predict(x[:1], **quiet))
stored("tensor", one.predict(tf.constant(x), batch_size=5, **quiet))
stored("outputs", two.predict(x, batch_size=8, **quiet))
stored("inputs", many.predict([x, y], batch_size=8, **quiet))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
stored("dataset", one.predict(dataset, **quiet))
stored("dataset steps", one.predict(dataset.repeat(), steps=7, **quiet))
options = tf.data.Options()
options.deterministic = False
parallel = dataset.map(lambda a, b: (a + 1.0, b), num_parallel_calls=4).with_options(options).prefetch(2)
stored("dataset parallel", np.sort(one.predict(parallel, **quiet), axis=0))
stored("generator", one.predict(batches(), **quiet))
stored("sequence", one.predict(Sequence(), **quiet))
stored("evaluate arrays", one.evaluate(x, y, batch_size=7, **quiet))
stored("evaluate dataset", one.evaluate(dataset, **quiet))
stored("evaluate sequence", one.evaluate(Sequence(), **quiet))
stored("on batch", one.predict_on_batch(x[:5]))
for kind in (Own, Classes, Twice, Summary, Hidden):
    own = kind()
    stored(f"subclass {kind.__name__}", own.predict(x, batch_size=7, **quiet))
    stored(f"subclass {kind.__name__} again", own.predict(x, batch_size=6, **quiet))
eager = keras.Sequential([keras.layers.Input((3,)), Counted(), keras.layers.Dense(1)])
eager.compile("sgd", "mse", run_eagerly=True)
stored("eager", eager.predict(x, batch_size=9, **quiet))
stepped = keras.Sequential([keras.layers.Input((3,)), Counted(), keras.layers.Dense(1)])
stepped.compile("sgd", "mse", steps_per_execution=2)
stored("steps per execution", stepped.predict(x, batch_size=5, **quiet))
compiled = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
compiled.compile("sgd", "mse", jit_compile=True)
stored("compiled", compiled.predict(x, batch_size=9, **quiet))

# Within training: in a callback, and between steps of a loop.
seen = []
trained = keras.Sequential([keras.layers.Input((3,)), Counted(), keras.layers.Dense(2)])
trained.compile(keras.optimizers.SGD(0.1), "mse")
look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(trained.predict(x, **quiet)))
history = trained.fit(x, y, batch_size=7, epochs=2, callbacks=[look], **quiet)
computed[0] = 0
stored("in callback", [*seen, np.array(history.history["loss"])])
optimizer = keras.optimizers.SGD(0.1)
for a, b in dataset:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((trained(a) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, trained.trainable_variables), trained.trainable_variables))
    seen.append(trained.predict(x, **quiet))
computed[0] = 0
stored("in loop", seen[2:])

# In a thread while the main thread trains.
found, ends = [], threading.Event()


def predict_until_the_end():
    while not found or not ends.is_set():
        found[:] = [one.predict(x, **quiet), *one.evaluate(x, y, **quiet)]


thread = threading.Thread(target=predict_until_the_end)
thread.start()
try:
    history = trained.fit(x, y, batch_size=7, epochs=5, **quiet)
finally:
    ends.set()
    thread.join()
results["in a thread"] = np.concatenate([np.ravel(part) for part in (*found, history.history["loss"])])
