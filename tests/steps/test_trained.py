"""Which variables a step trains: those whose values it changes, and which are weights."""

from matex_tf.steps import whole_code


def test_whole_numbers_are_counted_and_not_trained():
    """Keras 2 counts its steps in variables that say that they are trainable: its test step trains nothing."""
    import tensorflow as tf

    weight, frozen, count, total = (
        tf.Variable(0.0),
        tf.Variable(0.0),
        tf.Variable(0, dtype=tf.int64),
        tf.Variable(0.0, trainable=False),
    )

    @tf.function
    def train(x):
        count.assign_add(1)
        total.assign_add(x)
        weight.assign_sub(x * frozen)

    @tf.function
    def test(x):
        count.assign_add(1)
        total.assign_add(x * weight)

    x = tf.TensorSpec([])
    assert [id(one) for one in whole_code.list_trained(train.get_concrete_function(x))] == [id(weight)]
    assert whole_code.list_trained(test.get_concrete_function(x)) == []
