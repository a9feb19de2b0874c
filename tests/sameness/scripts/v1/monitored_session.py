"""MonitoredTrainingSession with hooks and a global step."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
rng = np.random.RandomState(1)
data, target = rng.rand(128, 6).astype(np.float32), rng.rand(128, 1).astype(np.float32)
x = tf.placeholder(tf.float32, [None, 6], name="x")
y = tf.placeholder(tf.float32, [None, 1], name="y")
w = tf.get_variable("w", [6, 1], initializer=tf.ones_initializer())
loss = tf.losses.mean_squared_error(y, tf.matmul(x, w))
global_step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=global_step)


class LoggerHook(tf.train.SessionRunHook):
    def begin(self):
        self.seen = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([loss, global_step])

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results[0])
        print("loss %.5f" % run_values.results[0])


logger = LoggerHook()
hooks = [tf.train.StopAtStepHook(last_step=9), tf.train.NanTensorHook(loss), logger]
with tf.train.MonitoredTrainingSession(checkpoint_dir="monitored", hooks=hooks, save_checkpoint_steps=4) as session:
    step = 0
    while not session.should_stop():
        first = step * 32 % 128
        session.run(train_op, feed_dict={x: data[first : first + 32], y: target[first : first + 32]})
        step += 1
print("steps", step, tf.train.latest_checkpoint("monitored"))
losses = logger.seen
