"""Basic training loops of the TensorFlow guide: a tf.Module, assign_sub and no optimizer."""

import tensorflow as tf

TRUE_W, TRUE_B, NUM_EXAMPLES = 3.0, 2.0, 201
x = tf.linspace(-2, 2, NUM_EXAMPLES)
x = tf.cast(x, tf.float32)
noise = tf.random.normal(shape=[NUM_EXAMPLES])
y = x * TRUE_W + TRUE_B + noise


class MyModel(tf.Module):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = tf.Variable(5.0)
        self.b = tf.Variable(0.0)

    def __call__(self, x):
        return self.w * x + self.b


model = MyModel()
print("Variables:", [v.name for v in model.variables])


def loss(target_y, predicted_y):
    return tf.reduce_mean(tf.square(target_y - predicted_y))


def train(model, x, y, learning_rate):
    with tf.GradientTape() as t:
        current_loss = loss(y, model(x))
    dw, db = t.gradient(current_loss, [model.w, model.b])
    model.w.assign_sub(learning_rate * dw)
    model.b.assign_sub(learning_rate * db)


def report(model, loss):
    return f"W = {model.w.numpy():1.2f}, b = {model.b.numpy():1.2f}, loss={loss:2.5f}"


weights, biases = [], []
for epoch in range(6):
    train(model, x, y, learning_rate=0.1)
    weights.append(model.w.numpy())
    biases.append(model.b.numpy())
    print(f"Epoch {epoch:2d}:", report(model, loss(y, model(x))))

# The quickstart for TensorFlow basics: the same over batches, in a graph.
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(buffer_size=201).batch(32)
quick = MyModel()
quick.train = tf.function(lambda a, b: train(quick, a, b, 0.05))
for epoch in range(3):
    for x_batch, y_batch in dataset:
        quick.train(x_batch, y_batch)
print("Mean squared error: %.4f" % loss(y, quick(x)).numpy())
