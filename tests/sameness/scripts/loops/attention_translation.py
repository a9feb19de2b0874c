"""Sequence to sequence with attention and teacher forcing: a Python loop over time inside the tape."""

import numpy as np
import tensorflow as tf

BATCH_SIZE, units, vocab = 16, 8, 15
rng = np.random.RandomState(0)
input_tensor, target_tensor = rng.randint(1, vocab, (56, 5)), rng.randint(1, vocab, (56, 4))
target_tensor[:, 0] = 1
for row in target_tensor:
    row[rng.randint(2, 5) :] = 0
dataset = tf.data.Dataset.from_tensor_slices((input_tensor, target_tensor)).shuffle(56).batch(BATCH_SIZE)


class Encoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab, 6)
        self.gru = tf.keras.layers.GRU(units, return_sequences=True, return_state=True)

    def call(self, x):
        output, state = self.gru(self.embedding(x))
        return output, state


class Attention(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.W1, self.W2, self.V = (tf.keras.layers.Dense(n) for n in (units, units, 1))

    def call(self, query, values):
        score = self.V(tf.nn.tanh(self.W1(tf.expand_dims(query, 1)) + self.W2(values)))
        weights = tf.nn.softmax(score, axis=1)
        return tf.reduce_sum(weights * values, axis=1)


class Decoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab, 6)
        self.gru = tf.keras.layers.GRU(units, return_sequences=True, return_state=True)
        self.fc = tf.keras.layers.Dense(vocab)
        self.attention = Attention()

    def call(self, x, hidden, enc_output):
        context = self.attention(hidden, enc_output)
        x = tf.concat([tf.expand_dims(context, 1), self.embedding(x)], axis=-1)
        output, state = self.gru(x)
        return self.fc(tf.reshape(output, (-1, output.shape[2]))), state


encoder, decoder = Encoder(), Decoder()
optimizer = tf.keras.optimizers.Adam(0.01)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def loss_function(real, pred):
    mask = tf.math.logical_not(tf.math.equal(real, 0))
    loss_ = loss_object(real, pred)
    loss_ *= tf.cast(mask, dtype=loss_.dtype)
    return tf.reduce_mean(loss_)


@tf.function
def train_step(inp, targ):
    loss = 0
    with tf.GradientTape() as tape:
        enc_output, dec_hidden = encoder(inp)
        dec_input = tf.expand_dims(targ[:, 0], 1)
        for t in range(1, targ.shape[1]):
            predictions, dec_hidden = decoder(dec_input, dec_hidden, enc_output)
            loss += loss_function(targ[:, t], predictions)
            dec_input = tf.expand_dims(targ[:, t], 1)
    batch_loss = loss / int(targ.shape[1])
    variables = encoder.trainable_variables + decoder.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))
    return batch_loss


for epoch in range(2):
    total_loss = 0
    for batch, (inp, targ) in enumerate(dataset):
        batch_loss = train_step(inp, targ)
        total_loss += batch_loss
        if batch % 2 == 0:
            print(f"Epoch {epoch + 1} Batch {batch} Loss {batch_loss.numpy():.4f}")
    print(f"Epoch {epoch + 1} Loss {total_loss / 4:.4f}")
