"""A table in pandas: a DataFrame given to fit, and columns as a dictionary in tf.data."""

import io

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

rows = ["age,trestbps,chol,thal,target"]
rng = np.random.RandomState(4)
for _ in range(140):
    age, pressure, chol = rng.randint(30, 75), rng.randint(95, 190), rng.randint(150, 400)
    thal = ["normal", "fixed", "reversible"][rng.randint(3)]
    rows.append(f"{age},{pressure},{chol},{thal},{int(age + chol / 10 + rng.randn() * 9 > 80)}")
df = pd.read_csv(io.StringIO("\n".join(rows)))
print(df.head())
print(df["target"].value_counts().to_dict())

numeric = df[["age", "trestbps", "chol"]]
target = df["target"]
normalizer = keras.layers.Normalization()
normalizer.adapt(np.asarray(numeric, dtype="float32"))
model = keras.Sequential([normalizer, keras.layers.Dense(10, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss=keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(numeric, target, epochs=2, batch_size=22, shuffle=False, verbose=2)


def dataframe_to_dataset(dataframe):
    dataframe = dataframe.copy()
    labels = dataframe.pop("target")
    return tf.data.Dataset.from_tensor_slices((dict(dataframe), labels)).shuffle(len(dataframe), seed=2)


train_ds = dataframe_to_dataset(df).batch(32)
lookup = keras.layers.StringLookup(output_mode="one_hot")
lookup.adapt(df["thal"].to_numpy())
age = keras.Input((1,), name="age", dtype="int64")
chol = keras.Input((1,), name="chol", dtype="int64")
thal = keras.Input((1,), name="thal", dtype="string")
mixed = keras.layers.Concatenate()(
    [
        keras.layers.Rescaling(1 / 50.0)(age),
        keras.layers.Rescaling(1 / 300.0)(chol),
        keras.layers.Lambda(lambda t: tf.cast(t, keras.backend.floatx()))(lookup(thal)),
    ]
)
output = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Dense(8, activation="tanh")(mixed))
table_model = keras.Model({"age": age, "chol": chol, "thal": thal}, output)
table_model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
table_history = table_model.fit(
    train_ds.map(lambda x, y: ({k: tf.expand_dims(x[k], -1) for k in ("age", "chol", "thal")}, y)), epochs=2, verbose=2
)
