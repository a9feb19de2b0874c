"""compute_gradients, clipping, apply_gradients; tf.gradients by hand beside it."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
X, Y = rng.randn(100, 5) * 3, rng.randint(0, 3, 100)
tf.set_random_seed(2)
x = tf.placeholder(tf.float64, shape=(None, 5))
y = tf.placeholder(tf.int64, shape=(None,))
with tf.variable_scope("mlp"):
    w1 = tf.get_variable("w1", [5, 8], tf.float64, tf.glorot_uniform_initializer())
    b1 = tf.get_variable("b1", [8], tf.float64, tf.zeros_initializer())
    w2 = tf.get_variable("w2", [8, 3], tf.float64, tf.glorot_uniform_initializer())
logits = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
penalty = 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
total = loss + penalty

optimizer = tf.train.RMSPropOptimizer(0.01)
pairs = optimizer.compute_gradients(total)
capped = [(tf.clip_by_value(g, -0.05, 0.05), v) for g, v in pairs if g is not None]
train = optimizer.apply_gradients(capped)

params = tf.trainable_variables()
gradients, norm = tf.clip_by_global_norm(tf.gradients(total, params), 0.5)
by_hand = tf.group(*[tf.assign_sub(p, 0.1 * g) for p, g in zip(params, gradients)])

losses = []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(10):
        rows = slice(step * 10 % 75, step * 10 % 75 + 25)
        op = train if step % 2 == 0 else by_hand
        value, _ = sess.run([loss, op], {x: X[rows], y: Y[rows]})
        losses.append(value)
        print("step %d loss %.6f" % (step, value))
    weights = sess.run(params)
