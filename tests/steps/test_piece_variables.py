"""Variables of which each rank holds a piece, in a process that has all of each."""

import gc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.rewrite.placement import PieceHandle
from matex_tf.steps import capture, function_plan, pieces
from matex_tf.steps.piece_variables import PieceVariable


def make(cuts=(0, 6)):
    of = tf.Variable(tf.ones([2, 3]))
    return PieceVariable(value=tf.reshape(tf.range(6.0), [2, 3]), cuts=cuts, of=of, owner="'adam'", name="m"), of


def test_eager_code_reads_and_writes_the_whole_value():
    slot, _ = make()
    assert slot.is_in_pieces() and slot.piece.shape.rank == 1 and slot.shape == (2, 3)
    np.testing.assert_array_equal(slot.numpy(), np.arange(6.0).reshape(2, 3))
    slot.assign(slot * 2)
    assert slot.is_in_pieces() and slot.piece.numpy().tolist() == [0, 2, 4, 6, 8, 10]
    slot.assign_add(tf.ones([2, 3]))  # what changes the value in eager code takes it whole, until the next step
    assert not slot.is_in_pieces() and not slot.piece.numpy().size and slot.numpy()[1, 2] == 11
    slot.split()
    assert slot.is_in_pieces() and slot.numpy()[1, 2] == 11
    with pytest.raises(ValueError, match="cannot assign a value of the shape"):
        slot.assign([1.0])


def test_what_takes_the_handle_by_itself_finds_no_piece():
    slot, _ = make()
    read = tf.function(lambda: slot + 0).get_concrete_function()
    with pytest.raises(tf.errors.FailedPreconditionError, match="of which ranks have pieces"):
        read()
    pieces.make_all_whole()
    np.testing.assert_array_equal(read(), np.arange(6.0).reshape(2, 3))


def test_a_checkpoint_has_the_whole_value_and_restores_it(tmp_path):
    slot, _ = make()
    path = tf.train.Checkpoint(slot=slot).save(str(tmp_path / "kept"))
    plain = tf.Variable(tf.zeros([2, 3]))
    tf.train.Checkpoint(slot=plain).restore(path).assert_consumed()
    np.testing.assert_array_equal(plain.numpy(), np.arange(6.0).reshape(2, 3))
    slot.assign(tf.zeros([2, 3]))
    tf.train.Checkpoint(slot=slot).restore(path).assert_consumed()
    np.testing.assert_array_equal(slot.numpy(), np.arange(6.0).reshape(2, 3))


def test_a_variable_that_is_collected_in_a_trace_leaves_nothing_there():
    """When Python collects it is another time on each rank, and ranks compare their traces."""
    slot, _ = make()

    def trace():
        nonlocal slot
        slot = None
        gc.collect()
        return tf.constant(1)

    graph = tf.function(trace, autograph=False).get_concrete_function().graph
    assert {op.type for op in graph.get_operations()} == {"Const", "Identity"}


def test_a_plan_follows_what_its_variables_are_cut_for():
    slot, weight = make()
    weight.assign(tf.ones([2, 3]))

    @tf.function
    def step(rows):
        slot.assign_add(tf.matmul(rows, rows, transpose_a=True)[:2])
        weight.assign_sub(slot)

    own = capture.trace_step(step, (tf.ones([4, 3]),), {})
    made = function_plan.FunctionPlan(own, [True], [tf.ones([4, 3])], "the step")
    assert made.why_whole == "" and slot in made.copies.pieces.list_variables()
    for cuts in ((0, 2, 6), (0, 6)):
        slot.cuts = cuts
        made.copies.find([False, *made.inputs.divided[1:]])
        assert {value.placement.cuts for value in made.program.inputs if isinstance(value.placement, PieceHandle)} == {
            cuts
        }


def test_a_variable_that_an_op_takes_whole_leaves_the_others_in_pieces():
    """All placements are found again, with this variable whole; and the copy has them."""
    (held, _), (refused, _) = make(), make()
    expected = [tf.Variable(slot.numpy()) for slot in (held, refused)]
    rows = tf.reshape(tf.range(12.0), [4, 3])

    def train(rows, first, second):
        gradient = tf.matmul(rows, rows, transpose_a=True)[:2]
        first.assign_add(gradient)
        second.assign_add(gradient * first)
        return tf.reduce_sum(second.sparse_read([1]))  # takes the handle: an op on rows of a whole variable

    step = tf.function(lambda rows: train(rows, held, refused))
    made = function_plan.FunctionPlan(capture.trace_step(step, (rows,), {}), [True], [rows], "the step")
    assert made.why_whole == "" and made.copies.pieces.list_variables() == [held]
    assert refused.is_refused and not refused.is_in_pieces() and held.is_in_pieces()
    assert [isinstance(value.placement, PieceHandle) for value in made.program.inputs].count(True) == 1
    np.testing.assert_allclose(made.call([rows], None), train(rows, *expected))
    for slot, plain in zip((held, refused), expected):
        np.testing.assert_allclose(slot.numpy(), plain.numpy())


def test_a_piece_takes_no_more_memory_than_its_entries():
    """Cuts as those of rank 0 of 8: the rest of a value is given back."""
    megabytes, count = 16, 8
    of = tf.Variable(tf.ones([megabytes << 18]))
    size = of.shape.num_elements()
    cuts = tuple(size * rank // 8 for rank in range(9))

    def measure():
        gc.collect()
        line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon"))
        return int(line.split()[1]) >> 10

    def make_slot():
        return PieceVariable(value=tf.zeros([size]), cuts=cuts, of=of, owner="'adam'", name="m")

    kept, before = [make_slot()], measure()  # the first also has what TensorFlow keeps for the next value
    kept += [make_slot() for _ in range(count)]
    assert measure() - before < count * megabytes / 2
