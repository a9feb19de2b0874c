"""The whole epoch in one tf.function."""

import tensorflow as tf


def prepare(x, y):
    return tf.cast(x, tf.float32) / 255.0, y


x = tf.random.stateless_uniform([140, 6, 6], seed=(1, 2), maxval=255, dtype=tf.int32)
y = tf.random.stateless_uniform([140], seed=(3, 4), maxval=10, dtype=tf.int64)
ds = tf.data.Dataset.from_tensor_slices((x, y)).map(prepare).take(140).shuffle(140, seed=0).batch(25)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Reshape(target_shape=(36,), input_shape=(6, 6)),
        tf.keras.layers.Dense(16, activation="tanh"),
        tf.keras.layers.Dense(10),
    ]
)
model.build()
optimizer = tf.keras.optimizers.Adam()
compute_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
compute_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


def train_one_step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        logits = model(x)
        loss = compute_loss(y, logits)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    compute_accuracy(y, logits)
    return loss


@tf.function
def train(model, optimizer):
    train_ds = ds
    step = 0
    loss = 0.0
    accuracy = 0.0
    for x, y in train_ds:
        step += 1
        loss = train_one_step(model, optimizer, x, y)
        if step % 2 == 0:
            tf.print("Step", step, ": accuracy", compute_accuracy.result())
            tf.print("step", step, output_stream="file://steps.log")
    return step, loss, accuracy


step, loss, accuracy = train(model, optimizer)
print("Final step", step.numpy(), ": loss %.5f" % loss, "; accuracy %.5f" % compute_accuracy.result())
with open("steps.log") as log:
    print("logged", log.read().split())
