"""The DCGAN tutorial: one tf.function with two tapes, a checkpoint, drop-in noise of a fixed batch size."""

import os

import tensorflow as tf

BATCH_SIZE, noise_dim, EPOCHS = 32, 6, 2
train_images = tf.random.uniform([128, 12], -1, 1, seed=3)
train_dataset = tf.data.Dataset.from_tensor_slices(train_images).shuffle(128).batch(BATCH_SIZE)
generator = tf.keras.Sequential(
    [tf.keras.layers.Input((noise_dim,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(12)]
)
discriminator = tf.keras.Sequential(
    [tf.keras.layers.Input((12,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)]
)
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def generator_loss(fake_output):
    return cross_entropy(tf.ones_like(fake_output), fake_output)


generator_optimizer = tf.keras.optimizers.Adam(1e-4)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-4)
checkpoint_dir = "./training_checkpoints"
checkpoint = tf.train.Checkpoint(
    generator_optimizer=generator_optimizer,
    discriminator_optimizer=discriminator_optimizer,
    generator=generator,
    discriminator=discriminator,
)


@tf.function
def train_step(images):
    noise = tf.random.normal([BATCH_SIZE, noise_dim])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gradients_of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    gradients_of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients_of_generator, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(gradients_of_discriminator, discriminator.trainable_variables))
    return gen_loss, disc_loss


def train(dataset, epochs):
    for epoch in range(epochs):
        for image_batch in dataset:
            gen_loss, disc_loss = train_step(image_batch)
        checkpoint.save(file_prefix=os.path.join(checkpoint_dir, "ckpt"))
        print("epoch %d: generator %.2f discriminator %.2f" % (epoch + 1, gen_loss, disc_loss))


train(train_dataset, EPOCHS)
print(os.path.basename(tf.train.latest_checkpoint(checkpoint_dir)))
