"""Comparisons of the variables of ranks."""

import pytest
import tensorflow as tf
from peak_memory import peak_of

import launch
from matex_tf.steps import variables

VALUES, BYTES = 4, 1 << 24


def compare():
    weights = [tf.Variable(tf.zeros([BYTES // 4])) for _ in range(VALUES)]
    assert variables.synchronize_variables(weights, "comparing weights") == []


def test_a_comparison_copies_no_value():
    assert peak_of(compare) < BYTES


OTHER_ORDER = """
import sys, tensorflow as tf
from matex_tf.steps import agreement, variables
rank, name = sys.modules["matex_tf"].rank(), sys.argv[1]

def make_slots(*shapes):
    slots = {n: tf.Variable(tf.zeros(shapes[n]), name=name and f"{name}{n}") for n in ([1, 0] if rank else [0, 1])}
    return [slots[0], slots[1]]

weights, slots = [tf.Variable(0.0, name=f"weight{n}") for n in range(2)], make_slots([], [])
for number, one in enumerate([*weights, *slots]):
    one.assign(number)
assert variables.synchronize_variables([*weights, *slots], "equal") == []
weights[0].assign(rank)
assert len(variables.synchronize_variables([*weights, *slots], "a weight")) == 1
weights[0].assign(rank), weights[1].assign(1 - rank)
assert len(variables.synchronize_variables([*weights, *slots], "swapped weights")) == 2
assert [float(one) for one in [*weights, *slots]] == [0, 1, 2, 3]
other_slots = make_slots([1], [2])
variables.synchronize_variables(other_slots, "other shapes")
if name:  # without names, a slot that one rank alone has freed could be any
    del other_slots[1 + rank :]  # rank 0 frees the second
agreement.compare_weights("after steps")
print("same")
"""


@pytest.mark.parametrize("name", ["named", ""])
def test_variables_are_matched_that_ranks_create_in_another_order(name):
    assert launch.run(2, OTHER_ORDER, name).check().stdout == "same\n"
