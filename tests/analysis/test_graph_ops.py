"""What is read of an op's definition does not depend on the order in which protobuf holds it."""

import itertools
import types

from tensorflow.core.framework import attr_value_pb2

from matex_tf.analysis import graph_ops


def test_the_branches_of_an_op_come_in_one_order():
    branches = {name: attr_value_pb2.AttrValue() for name in ("Tcond", "else_branch", "then_branch", "after")}
    for name in ("else_branch", "then_branch"):
        branches[name].func.name = f"the {name}"
    branches["after"].list.func.add(name="the last")
    for order in itertools.permutations(branches.items()):
        found = graph_ops.list_functions(types.SimpleNamespace(attr=dict(order)))
        assert found == ["the last", "the else_branch", "the then_branch"]
