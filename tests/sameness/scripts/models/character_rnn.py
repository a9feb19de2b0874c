"""Text generation with a GRU: fixed batches (drop_remainder=True), fit, a loop and one-step generation."""

import tensorflow as tf

text = "the quick brown fox jumps over the lazy dog and the dog sleeps in the sun " * 9
vocab = sorted(set(text))
ids_from_chars = tf.keras.layers.StringLookup(vocabulary=list(vocab), mask_token=None)
chars_from_ids = tf.keras.layers.StringLookup(vocabulary=ids_from_chars.get_vocabulary(), invert=True, mask_token=None)
all_ids = ids_from_chars(tf.strings.unicode_split(text, "UTF-8"))
seq_length = 12
sequences = tf.data.Dataset.from_tensor_slices(all_ids).batch(seq_length + 1, drop_remainder=True)


def split_input_target(sequence):
    return sequence[:-1], sequence[1:]


BATCH_SIZE, BUFFER_SIZE = 16, 100
dataset = (
    sequences.map(split_input_target)
    .shuffle(BUFFER_SIZE)
    .batch(BATCH_SIZE, drop_remainder=True)
    .prefetch(tf.data.experimental.AUTOTUNE)
)


class MyModel(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim, rnn_units):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab_size, embedding_dim)
        self.gru = tf.keras.layers.GRU(rnn_units, return_sequences=True, return_state=True)
        self.dense = tf.keras.layers.Dense(vocab_size)

    def call(self, inputs, states=None, return_state=False, training=False):
        x = self.embedding(inputs, training=training)
        x, states = self.gru(x, initial_state=states, training=training)
        x = self.dense(x, training=training)
        if return_state:
            return x, states
        return x


model = MyModel(len(ids_from_chars.get_vocabulary()), 8, 12)
for input_example_batch, target_example_batch in dataset.take(1):
    example_batch_predictions = model(input_example_batch)
    print(example_batch_predictions.shape, "# (batch_size, sequence_length, vocab_size)")
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
print("Mean loss:", loss(target_example_batch, example_batch_predictions).numpy())
model.compile(optimizer="adam", loss=loss)
history = model.fit(dataset, epochs=2, verbose=2)

states, next_char = None, tf.constant(["t", "s"])
result = [next_char]
for _ in range(4):
    logits, states = model(ids_from_chars(next_char)[:, None], states=states, return_state=True)
    next_char = chars_from_ids(tf.argmax(logits[:, -1, :], axis=-1))
    result.append(next_char)
print(tf.strings.join(result).numpy())

mean = tf.metrics.Mean()
optimizer = tf.keras.optimizers.Adam()
for epoch in range(2):
    mean.reset_state()
    for batch_n, (inp, target) in enumerate(dataset):
        with tf.GradientTape() as tape:
            predictions = model(inp, training=True)
            value = loss(target, predictions)
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        mean.update_state(value)
    print(f"Epoch {epoch + 1} Loss: {mean.result().numpy():.4f}")
