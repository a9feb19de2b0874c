"""Decoding and augmenting in parallel, shuffled without a seed, batched inside the pipeline."""

import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
images = tf.random.uniform([130, 10, 10, 1], seed=1)
labels = tf.random.uniform([130], maxval=5, dtype=tf.int32, seed=2)
encoded = [tf.io.serialize_tensor(image) for image in images]


def decode(record, label):
    image = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [10, 10, 1])
    return image, label


def normalize(image, label):
    return (image - 0.5) * 2.0, label


ds = (
    tf.data.Dataset.from_tensor_slices((encoded, labels))
    .shuffle(130)
    .map(decode, num_parallel_calls=AUTOTUNE)
    .map(normalize, num_parallel_calls=AUTOTUNE)
    .batch(32)
    .prefetch(AUTOTUNE)
)
train_ds, test_ds = ds.skip(1), ds.take(1)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, 3, activation="tanh"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(5),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.Adam(),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(train_ds, epochs=2, validation_data=test_ds, verbose=2)
