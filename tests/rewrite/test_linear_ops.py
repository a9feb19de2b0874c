"""An op that is said to be linear is: of a sum it makes the sum of what it makes of the terms, and no collective."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.rewrite.placement import SUM, WHOLE, Partial
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.rules import registry

R = tf.raw_ops
OTHER = np.random.default_rng(1).uniform(0.5, 1.5, [4, 6])
GRADIENTS = "Relu Relu6 Elu Selu LeakyRelu Softplus Softsign".split()
OF_OUTPUTS = "Sigmoid Tanh Rsqrt Sqrt Reciprocal Inv".split()
PAIRS = [[0, 1], [0, 0]]

OPS = {
    "Unpack": lambda x: R.Unpack(value=x, num=4),
    "Split": lambda x: R.Split(axis=1, value=x, num_split=3),
    "SplitV": lambda x: R.SplitV(value=x, size_splits=[2, 4], axis=1, num_split=2),
    "Pad": lambda x: R.Pad(input=x, paddings=PAIRS),
    "MirrorPad": lambda x: R.MirrorPad(input=x, paddings=PAIRS, mode="REFLECT"),
    "Pack": lambda x: R.Pack(values=[x, 2 * x, tf.zeros_like(x)]),
    "ConcatV2": lambda x: R.ConcatV2(values=[x, 2 * x], axis=0),
    "SpaceToBatchND": lambda x: R.SpaceToBatchND(input=x, block_shape=[2], paddings=[[0, 0]]),
    "BatchToSpaceND": lambda x: R.BatchToSpaceND(input=x, block_shape=[2], crops=[[0, 0]]),
    "ReverseSequence": lambda x: R.ReverseSequence(input=x, seq_lengths=[1, 2, 3, 4], seq_dim=1),
    "Reshape": lambda x: R.Reshape(tensor=x, shape=[6, 4]),
    "ExpandDims": lambda x: R.ExpandDims(input=x, axis=0),
    "Squeeze": lambda x: R.Squeeze(input=tf.reshape(x, [4, 1, 6])),
    "EnsureShape": lambda x: R.EnsureShape(input=x, shape=[4, 6]),
    "Transpose": lambda x: R.Transpose(x=x, perm=[1, 0]),
    "ConjugateTranspose": lambda x: R.ConjugateTranspose(x=x, perm=[1, 0]),
    "BroadcastTo": lambda x: R.BroadcastTo(input=x, shape=[2, 4, 6]),
    "Tile": lambda x: R.Tile(input=x, multiples=[2, 1]),
    "StridedSlice": lambda x: x[1:3, ::2],
    "StridedSliceGrad": lambda x: R.StridedSliceGrad(shape=[6, 6], begin=[1, 0], end=[5, 6], strides=[1, 1], dy=x),
    "Slice": lambda x: R.Slice(input=x, begin=[1, 1], size=[2, 3]),
    "GatherV2": lambda x: R.GatherV2(params=x, indices=[2, 0], axis=1),
    "Gather": lambda x: R.Gather(params=x, indices=[2, 0]),
    "GatherNd": lambda x: R.GatherNd(params=x, indices=[[1, 2], [3, 0]]),
    "UnsortedSegmentSum": lambda x: R.UnsortedSegmentSum(data=x, segment_ids=[0, 1, 1, 2], num_segments=3),
    "ScatterNd": lambda x: R.ScatterNd(indices=[[0], [2], [2], [1]], updates=x, shape=[3, 6]),
    "BiasAddGrad": lambda x: R.BiasAddGrad(out_backprop=x),
    "Cumsum": lambda x: R.Cumsum(x=x, axis=0),
    "ReverseV2": lambda x: R.ReverseV2(tensor=x, axis=[0]),
    "Roll": lambda x: R.Roll(input=x, shift=[1], axis=[0]),
    "Neg": lambda x: R.Neg(x=x),
    "Real": lambda x: R.Real(input=x, Tout=tf.float64),
    "Imag": lambda x: R.Imag(input=x, Tout=tf.float64),
    "Conj": lambda x: R.Conj(input=x),
    "SelectV2": lambda x: R.SelectV2(condition=OTHER > 1, t=x, e=tf.zeros_like(x)),
    "Select": lambda x: R.Select(condition=OTHER > 1, x=x, y=2 * x),
    "AddV2": lambda x: R.AddV2(x=x, y=2 * x),
    "Add": lambda x: R.Add(x=x, y=2 * x),
    "Sub": lambda x: R.Sub(x=tf.zeros_like(x), y=x),
    "AddN": lambda x: R.AddN(inputs=[x, 2 * x]),
    "AccumulateNV2": lambda x: R.AccumulateNV2(inputs=[x, 2 * x], shape=[4, 6]),
    **{
        f"{name}Grad": lambda x, name=name: getattr(R, f"{name}Grad")(gradients=x, features=OTHER) for name in GRADIENTS
    },
    "EluGrad": lambda x: R.EluGrad(gradients=x, outputs=OTHER),
    "SeluGrad": lambda x: R.SeluGrad(gradients=x, outputs=OTHER),
    **{f"{one}Grad": lambda x, one=one: getattr(R, f"{one}Grad")(y=OTHER, dy=x) for one in OF_OUTPUTS},
    "Mul": lambda x: R.Mul(x=OTHER, y=x),
    "MatMul": lambda x: R.MatMul(a=OTHER, b=x, transpose_b=True),
    "BatchMatMul": lambda x: R.BatchMatMul(x=x, y=OTHER, adj_y=True),
    "BatchMatMulV2": lambda x: R.BatchMatMulV2(x=x, y=OTHER, adj_y=True),
    "BatchMatMulV3": lambda x: R.BatchMatMulV3(x=x, y=OTHER, adj_y=True, Tout=tf.float64),
    "Einsum": lambda x: R.Einsum(inputs=[x, OTHER], equation="ab,cb->ac"),
    "Cross": lambda x: R.Cross(a=tf.reshape(x, [4, 2, 3]), b=OTHER.reshape([4, 2, 3])),
}
COMPLEX = ("Real", "Imag", "Conj")


def test_each_op_that_is_said_to_be_linear_is_tried():
    assert {*registry._LINEAR, *registry._PRODUCTS} == {*OPS}


@pytest.mark.parametrize("name", OPS)
def test_a_sum_stays_one(name):
    draw = np.random.default_rng(0).normal
    terms = [tf.constant(draw(size=[4, 6]) + 1j * draw(size=[4, 6]) * (name in COMPLEX)) for _ in range(2)]
    terms = [one if name in COMPLEX else tf.math.real(one) for one in terms]
    function = tf.function(OPS[name], autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([4, 6], terms[0].dtype)).graph
    assert name in [op.type for op in graph.get_operations()]
    program = read_program(graph, [SUM] + [WHOLE] * len(graph.captures))
    assert all(isinstance(value.placement, Partial) for value in program.outputs)
    program.gives = [value.placement for value in program.outputs]
    assert not program.has_collectives
    made = [tf.nest.flatten(function(one)) for one in (*terms, terms[0] + terms[1])]
    for first, second, whole in zip(*made):
        np.testing.assert_allclose(first + second, whole, 1e-12, 1e-12)
