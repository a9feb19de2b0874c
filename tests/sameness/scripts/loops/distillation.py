"""Knowledge distillation: compute_loss overridden, the teacher in evaluation mode."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            tf.nn.softmax(teacher_pred / self.temperature, axis=1),
            tf.nn.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


x = np.random.RandomState(0).rand(90, 7)
y = np.random.RandomState(1).randint(0, 4, 90)
teacher = keras.Sequential([keras.Input((7,)), layers.Dense(16, activation="tanh"), layers.Dense(4)], name="teacher")
student = keras.Sequential([keras.Input((7,)), layers.Dense(4)], name="student")
teacher.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
taught = teacher.fit(x, y, epochs=2, verbose=2)
teacher.evaluate(x, y, verbose=0)
distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
)
history = distiller.fit(x, y, epochs=2, verbose=2)
print(distiller.evaluate(x, y, verbose=0))
