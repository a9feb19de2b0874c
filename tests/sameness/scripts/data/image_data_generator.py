"""ImageDataGenerator.flow with flips, and a manual loop over it."""

import numpy as np
from tensorflow.keras import layers, models
from tensorflow.keras.preprocessing.image import ImageDataGenerator

rng = np.random.RandomState(0)
x_train, y_train = rng.rand(60, 8, 8, 3) * 255, rng.randint(0, 2, 60)
train_datagen = ImageDataGenerator(rescale=1.0 / 255, horizontal_flip=True, vertical_flip=True)
model = models.Sequential(
    [
        layers.Input((8, 8, 3)),
        layers.Conv2D(4, (3, 3), activation="tanh"),
        layers.AveragePooling2D((2, 2)),
        layers.Flatten(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(loss="binary_crossentropy", optimizer="rmsprop", metrics=["acc"])
history = model.fit(train_datagen.flow(x_train, y_train, batch_size=20, seed=3), epochs=2, verbose=2)

batches = 0
for x_batch, y_batch in train_datagen.flow(x_train, y_train, batch_size=20, seed=4):
    result = model.train_on_batch(x_batch, y_batch)
    batches += 1
    if batches >= 3:
        break
print("loss %.6f" % float(result[0]))
