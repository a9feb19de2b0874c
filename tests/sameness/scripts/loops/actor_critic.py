"""Reinforcement learning: episodes inside the tape, actions drawn by NumPy, as on keras.io."""

import keras
import numpy as np
import tensorflow as tf

seed = 42
rng = np.random.RandomState(seed)
gamma = 0.9
inputs = keras.layers.Input(shape=(2,))
common = keras.layers.Dense(8, activation="tanh")(inputs)
action = keras.layers.Dense(2, activation="softmax")(common)
critic = keras.layers.Dense(1)(common)
model = keras.Model(inputs=inputs, outputs=[action, critic])
optimizer = keras.optimizers.Adam(learning_rate=0.01)
huber_loss = keras.losses.Huber()
running_reward = 0

for episode in range(5):
    state = np.array([0.0, 1.0])
    action_probs_history, critic_value_history, rewards_history = [], [], []
    with tf.GradientTape() as tape:
        for timestep in range(1, 8):
            action_probs, critic_value = model(tf.expand_dims(tf.convert_to_tensor(state), 0))
            critic_value_history.append(critic_value[0, 0])
            chosen = rng.choice(2, p=np.squeeze(action_probs) / np.sum(np.squeeze(action_probs)))
            action_probs_history.append(tf.math.log(action_probs[0, chosen]))
            state = np.array([state[1], 0.5 * state[0] + (0.3 if chosen else -0.3)])
            rewards_history.append(-float(abs(state[0])))
        running_reward = 0.05 * sum(rewards_history) + 0.95 * running_reward
        returns, discounted_sum = [], 0
        for r in rewards_history[::-1]:
            discounted_sum = r + gamma * discounted_sum
            returns.insert(0, discounted_sum)
        returns = np.array(returns)
        returns = ((returns - np.mean(returns)) / (np.std(returns) + 1e-7)).tolist()
        actor_losses, critic_losses = [], []
        for log_prob, value, ret in zip(action_probs_history, critic_value_history, returns):
            actor_losses.append(-log_prob * (ret - value))
            critic_losses.append(huber_loss(tf.expand_dims(value, 0), tf.expand_dims(ret, 0)))
        loss_value = sum(actor_losses) + sum(critic_losses)
    grads = tape.gradient(loss_value, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    print(f"running reward: {running_reward:.4f} at episode {episode}")
