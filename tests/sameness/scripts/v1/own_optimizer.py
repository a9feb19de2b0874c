"""A subclass of tf.train.Optimizer."""

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_ops, math_ops, state_ops
from tensorflow.python.training import optimizer

tf.disable_v2_behavior()


class PowerSign(optimizer.Optimizer):
    def __init__(self, learning_rate=0.001, alpha=0.01, beta=0.5, use_locking=False, name="PowerSign"):
        super().__init__(use_locking, name)
        self._lr, self._alpha, self._beta = learning_rate, alpha, beta

    def _prepare(self):
        self._lr_t = ops.convert_to_tensor(self._lr, name="learning_rate")
        self._alpha_t = ops.convert_to_tensor(self._alpha, name="alpha_t")
        self._beta_t = ops.convert_to_tensor(self._beta, name="beta_t")

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)

    def _apply_dense(self, grad, var):
        lr_t = math_ops.cast(self._lr_t, var.dtype.base_dtype)
        alpha_t = math_ops.cast(self._alpha_t, var.dtype.base_dtype)
        m = self.get_slot(var, "m")
        m_t = m.assign(tf.maximum(self._beta * m, tf.abs(grad)))
        update = state_ops.assign_sub(var, lr_t * grad * tf.exp(tf.log(alpha_t) * tf.sign(grad) * tf.sign(m_t)))
        return control_flow_ops.group(update, m_t)

    def _resource_apply_dense(self, grad, var):
        m = self.get_slot(var, "m")
        m_t = m.assign(tf.maximum(self._beta * m, tf.abs(grad)))
        return control_flow_ops.group(var.assign_sub(self._lr * grad * (1.0 + tf.sign(grad) * 0.1)), m_t)


X = np.random.RandomState(0).rand(80, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)
x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
W = tf.Variable(np.full([4, 1], 0.2, "float32"))
loss = tf.reduce_mean(tf.square(tf.matmul(x, W) - y))
train = PowerSign(0.1).minimize(loss)
history = []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(8):
        history.append(sess.run([loss, train], {x: X[i * 10 : i * 10 + 10], y: Y[i * 10 : i * 10 + 10]})[0])
    weights = sess.run(W)
print(["%.5f" % value for value in history])
