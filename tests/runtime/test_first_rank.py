"""Errors of work that rank 0 does for all ranks."""

import os
import pickle
import threading

import pytest
import tensorflow as tf

from matex_tf.runtime import first_rank


class Described(ValueError):
    """Cannot be created from its arguments."""

    def __init__(self, name, reason):
        super().__init__(f"{name}: {reason}")


class Locked(LookupError):
    """Cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def fail_in_graph():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        session.run(tf.debugging.check_numerics(tf.constant(float("nan")), "of the script"))


def fail_by(error):
    raise error


@pytest.mark.parametrize(
    "work, kind, text",
    [
        (lambda: os.stat("/no/such/file"), FileNotFoundError, "/no/such/file"),
        (lambda: fail_by(Described("a", "b")), ValueError, "Described: a: b"),
        (lambda: fail_by(Locked("a")), LookupError, "Locked: a"),
        (fail_in_graph, tf.errors.InvalidArgumentError, "of the script"),
    ],
)
def test_an_error_that_cannot_be_sent_is_the_nearest_that_can_on_every_rank(work, kind, text):
    result, error = first_rank._catch_outcome(work)
    sent = pickle.loads(pickle.dumps(error))
    assert result is None and type(error) is type(sent) is kind
    assert text in str(error) and str(sent) == str(error)
    assert error.__traceback__ is not None or error.__cause__.__traceback__ is not None
