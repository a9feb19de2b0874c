"""Skip-gram with a sampled loss: embedding_lookup, IndexedSlices, fixed batch size of placeholders."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
batch_size, vocabulary_size, embedding_size, num_sampled = 24, 50, 6, 8
rng = np.random.RandomState(0)
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(4)
    train_inputs = tf.placeholder(tf.int32, shape=[batch_size])
    train_labels = tf.placeholder(tf.int32, shape=[batch_size, 1])
    embeddings = tf.Variable(tf.random_uniform([vocabulary_size, embedding_size], -1.0, 1.0))
    embed = tf.nn.embedding_lookup(embeddings, train_inputs)
    nce_weights = tf.Variable(tf.truncated_normal([vocabulary_size, embedding_size], stddev=0.4))
    nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
    loss = tf.reduce_mean(tf.nn.nce_loss(nce_weights, nce_biases, train_labels, embed, num_sampled, vocabulary_size))
    optimizer = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keepdims=True))
    normalized_embeddings = embeddings / norm
    init = tf.global_variables_initializer()

average_loss = 0.0
with tf.Session(graph=graph) as session:
    init.run()
    for step in range(10):
        inputs = rng.randint(0, vocabulary_size, batch_size)
        context = rng.randint(0, vocabulary_size, (batch_size, 1))
        _, loss_val = session.run([optimizer, loss], feed_dict={train_inputs: inputs, train_labels: context})
        average_loss += loss_val / 10
    final_embeddings = normalized_embeddings.eval()
print("Average loss over 10 steps: %.4f" % average_loss)
