"""The table of rules: each op type in small functions whose claims are compared with what they compute.

Every tensor in the graph of a case is compared, not only what it returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import recombining
import tensorflow as tf
from op_cases import ALONE, ARRAYS, CASES, DRAWN, OPEN

from matex_tf.analysis import declarations, interpreter
from matex_tf.analysis.placement import ROWS, UNKNOWN
from matex_tf.analysis.rules import RULES

SPLITS = ((4, 1), (2, 1, 2))


def _graph(function: Callable) -> tuple[tf.Graph, list[np.ndarray]]:
    values = [ARRAYS[name] for name in inspect.signature(function).parameters]
    specs = [one if one.dtype != object else one.astype("S") for one in values]
    return recombining.traced(function, specs), values


def _types(graph: tf.Graph, found: interpreter.Interpreter) -> set[str]:
    """The types of ops in a graph, and in the functions that it calls, of which something is claimed."""
    types = set()
    for op in graph.get_operations():
        if any(found.find_placement(one).kind != UNKNOWN for one in op.outputs):
            types.add(op.type)
    for inner in found._functions.values():
        types |= _types(inner.graph, inner)
    return types


@pytest.mark.parametrize(
    "kinds, function", CASES, ids=[f"{index}-{one[0].split()[0]}" for index, one in enumerate(CASES)]
)
def test_what_a_rule_claims_is_so(kinds, function):
    graph, values = _graph(function)
    found = interpreter.make_interpreter(graph)
    missing = set(kinds.split()) - _types(graph, found)
    assert not missing, f"nothing is claimed of {missing}"
    for tensor in graph.outputs:
        placement = found.find_placement(tensor)
        assert placement.kind != UNKNOWN, f"{placement.why[0].type}: {placement.why[1]}"
    if function not in DRAWN:
        for rows in SPLITS:
            assert recombining.wrong_claims(graph, values, rows) == []


def test_every_rule_has_a_case():
    covered = {kind for kinds, _ in CASES for kind in kinds.split()}
    assert set(RULES) - covered - set(ALONE) == set(), "rules without a case"
    assert set(ALONE) & covered == set()


@pytest.mark.parametrize("function", OPEN.values(), ids=OPEN)
def test_nothing_wrong_is_claimed_where_rows_meet(function):
    graph, values = _graph(function)
    for rows in (*SPLITS, (3, 2)):
        assert recombining.wrong_claims(graph, values, rows) == []


@tf.function
def _helper(x):
    return tf.tanh(x), tf.gather(tf.exp(x), tf.constant(1), axis=1), tf.cumsum(tf.tanh(x), 1)


def test_a_function_through_which_a_gradient_was_taken_is_called_once_more():
    """Its graph has more outputs then than this call of it."""

    def step(x):
        declarations.declare_placement(x, ROWS)
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = tf.reduce_sum(_helper(x)[2])
        return first, tape.gradient(first, x), _helper(x)[1]

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([None, 3], tf.float64)).graph
    assert interpreter.find_placement(graph.outputs[2]) == ROWS
