"""Writes, appends to and removes files, beside itself and elsewhere, while it trains: `python case.py ELSEWHERE`."""

import os
import sys

import numpy as np
import tensorflow as tf

ELSEWHERE, HERE = sys.argv[1], os.path.dirname(os.path.abspath(__file__))

os.remove("old.txt")
with open("log.txt", "a") as log:
    log.write("more\n")
with open(os.path.join(HERE, "made.txt"), "w") as file:
    file.write("new")
np.save("large.npy", np.ones(3 << 20))
with open(os.path.join(ELSEWHERE, "result.txt"), "w") as file:
    file.write("of a part of the rows")
tf.io.gfile.makedirs(os.path.join(ELSEWHERE, "folder"))

x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.save_weights(os.path.join(ELSEWHERE, "first.weights.h5"))
tf.train.Checkpoint(model=model).write(os.path.join(ELSEWHERE, "written"))
tf.train.Checkpoint(model=model).save(os.path.join(ELSEWHERE, "saved"))
model.load_weights(os.path.join(ELSEWHERE, "first.weights.h5"))
keep = tf.keras.callbacks.ModelCheckpoint(os.path.join(ELSEWHERE, "last.keras"))
model.fit(x, x[:, :1], batch_size=16, epochs=50, callbacks=[keep], verbose=0)
