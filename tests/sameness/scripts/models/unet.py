"""Segmentation with a small U-Net."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def get_model(img_size, num_classes):
    inputs = keras.Input(shape=img_size + (3,))
    down1 = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
    x = layers.AveragePooling2D(2)(down1)
    x = layers.SeparableConv2D(8, 3, padding="same", activation="tanh")(x)
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x)
    x = layers.concatenate([x, down1])
    x = layers.UpSampling2D(2)(layers.AveragePooling2D(2)(x))
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


rng = np.random.RandomState(0)
images, masks = rng.rand(42, 16, 16, 3), rng.randint(0, 3, (42, 16, 16, 1))
dataset = tf.data.Dataset.from_tensor_slices((images, masks)).batch(12)
model = get_model((16, 16), 3)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=2, validation_data=dataset.take(1), verbose=2)
