"""An iterator that is dropped ends in another thread: its end may take long, and all ranks would wait for it."""

import gc
import weakref

import tensorflow as tf

import launch
from matex_tf.ops import iterator_ends

SCRIPT = """
import threading
import tensorflow as tf
import matex_tf

goes_on, ended, found = threading.Event(), threading.Event(), []

def give_rows():
    try:
        for number in range(100):
            yield [float(number)]
    finally:
        found.append(goes_on.wait(20))
        ended.set()

dataset = tf.data.Dataset.from_generator(give_rows, output_signature=tf.TensorSpec([1]))
iterator = iter(dataset)
next(iterator)
del iterator
goes_on.set()
assert ended.wait(60), "the iterator has not ended"
assert found == [True], "the script has waited for the end of the iterator"
print("done")
"""


def test_the_script_goes_on_while_an_iterator_ends():
    assert "done" in launch.run(2, SCRIPT).check().stdout


def test_an_iterator_of_unreachable_objects_ends_before_the_script():
    """As in the traceback of a step in which a rank was lost."""
    gc.disable()
    try:
        refer = _let_go_in_a_cycle()
        assert refer() is not None
        iterator_ends.wait_for_ends()
        assert refer() is None
    finally:
        gc.enable()


def _let_go_in_a_cycle():
    held = {1: iter(tf.data.Dataset.range(3))}
    handle, held[2] = held[1]._iterator_resource, held
    refer = weakref.ref(held[1])
    iterator_ends.let_go(handle)
    return refer
