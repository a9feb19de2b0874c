"""Unpaired translation: one persistent tape, four models, four optimizers, batches of one row."""

import tensorflow as tf

train_x = tf.data.Dataset.from_tensor_slices(tf.random.normal([9, 6], seed=1)).cache().shuffle(9).batch(1)
train_y = tf.data.Dataset.from_tensor_slices(tf.random.normal([9, 6], seed=2)).cache().shuffle(9).batch(1)


def net(units):
    return tf.keras.Sequential(
        [tf.keras.layers.Input((6,)), tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(units)]
    )


generator_g, generator_f, discriminator_x, discriminator_y = net(6), net(6), net(1), net(1)
optimizers = [tf.keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(4)]
loss_obj = tf.keras.losses.BinaryCrossentropy(from_logits=True)
LAMBDA = 10


def discriminator_loss(real, generated):
    return (loss_obj(tf.ones_like(real), real) + loss_obj(tf.zeros_like(generated), generated)) * 0.5


def cycle_loss(real_image, cycled_image):
    return LAMBDA * tf.reduce_mean(tf.abs(tf.cast(real_image, cycled_image.dtype) - cycled_image))


@tf.function
def train_step(real_x, real_y):
    with tf.GradientTape(persistent=True) as tape:
        fake_y = generator_g(real_x, training=True)
        cycled_x = generator_f(fake_y, training=True)
        fake_x = generator_f(real_y, training=True)
        cycled_y = generator_g(fake_x, training=True)
        disc_real_x, disc_real_y = discriminator_x(real_x, training=True), discriminator_y(real_y, training=True)
        disc_fake_x, disc_fake_y = discriminator_x(fake_x, training=True), discriminator_y(fake_y, training=True)
        total_cycle_loss = cycle_loss(real_x, cycled_x) + cycle_loss(real_y, cycled_y)
        total_gen_g_loss = loss_obj(tf.ones_like(disc_fake_y), disc_fake_y) + total_cycle_loss
        total_gen_f_loss = loss_obj(tf.ones_like(disc_fake_x), disc_fake_x) + total_cycle_loss
        disc_x_loss = discriminator_loss(disc_real_x, disc_fake_x)
        disc_y_loss = discriminator_loss(disc_real_y, disc_fake_y)
    losses = (total_gen_g_loss, total_gen_f_loss, disc_x_loss, disc_y_loss)
    models = (generator_g, generator_f, discriminator_x, discriminator_y)
    for loss, model, optimizer in zip(losses, models, optimizers):
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return total_gen_g_loss


for epoch in range(2):
    n = 0
    for image_x, image_y in tf.data.Dataset.zip((train_x, train_y)):
        loss = train_step(image_x, image_y)
        if n % 3 == 0:
            print(".", end="")
        n += 1
    print(f"\nepoch {epoch + 1} loss {float(loss):.5f}")
