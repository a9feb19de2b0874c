"""Several inputs and outputs by name: the support tickets of the functional API guide."""

import keras
import numpy as np
from keras import layers

num_tags, num_words, num_departments = 12, 100, 4
title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.LSTM(8)(layers.Embedding(num_words, 8)(title_input))
body_features = layers.LSTM(4)(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)

title_data = np.random.randint(num_words, size=(90, 5))
body_data = np.random.randint(num_words, size=(90, 9))
tags_data = np.random.randint(2, size=(90, num_tags)).astype("float32")
priority_targets = np.random.random(size=(90, 1))
dept_targets = np.eye(num_departments)[np.random.randint(num_departments, size=90)]
history = model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=2,
    batch_size=32,
    verbose=2,
)
