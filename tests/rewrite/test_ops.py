"""Each op type in small functions of a batch, run on ranks: the results are those of the function alone."""

from __future__ import annotations

import inspect

import pytest
import tensorflow as tf
from op_cases import ARRAYS, CASES, DRAWN, OPEN, SINGLE, W, unknown
from simulated_ranks import Simulation, find_difference

from matex_tf.rewrite.kept import Kept
from matex_tf.rewrite.placement import Sharded

SPLITS = ((4, 1), (2, 0, 3))
FAIL_ALONE = {"rows that two masks choose", "rows that masks choose in calls", "pairs of rows", "a longer range"}


def _group(cases, together):
    """Cases of one function: they are traced and copied together, and share nothing but arguments."""
    return [cases[first : first + together] for first in range(0, len(cases), together)]


_EACH_BY_ITSELF = [case for case in CASES if case[1] in DRAWN]
_OTHERS = [case for case in CASES if case not in SINGLE and case[1] not in DRAWN]
GROUPS = [*_group(SINGLE, 16), *_group(_OTHERS, 5), *_group(_EACH_BY_ITSELF, 1)]
_INEXACT = {"Cast": 1e-6}
"""Sums of float32, by the ops of the case."""


def _simulate(function, is_open=True, names=None):
    values = [ARRAYS[name] for name in names or inspect.signature(function).parameters]
    arrays = [one.astype("S") if one.dtype == object else one for one in values]
    return Simulation(function, arrays, is_open=is_open)


def _join(cases):
    """A function that gives what all cases give, the names of its arguments, and the number of results of each case."""
    parameters = [list(inspect.signature(function).parameters) for _, function in cases]
    names, counts = list(dict.fromkeys(name for of_case in parameters for name in of_case)), []

    def joined(*arguments):
        given = dict(zip(names, arguments))
        made = [function(*map(given.get, of_case)) for (_, function), of_case in zip(cases, parameters)]
        counts[:] = [len(tf.nest.flatten(one)) for one in made]
        return made

    return joined, names, counts


@pytest.mark.parametrize("cases", GROUPS, ids=[f"{i}-{one[0][0].split()[0]}" for i, one in enumerate(GROUPS)])
def test_ranks_compute_what_the_op_computes_alone(cases, monkeypatch):
    """Made anew in the copy and kept as it is, traced for a fixed and for any number of rows."""
    for rows, is_kept, is_open in zip(SPLITS, (True, False), (False, True)):
        joined, names, counts = _join(cases)
        simulation = _simulate(joined, is_open, names)
        expected = simulation.run_alone()
        if not is_kept:
            monkeypatch.setattr(Kept, "can_keep", lambda *_: False)
        counts[-1] += len(expected) - sum(counts)  # variables
        for given in simulation.run(rows):
            assert len(given) == len(expected)
            wrong, first = {}, 0
            for (kinds, function), count in zip(cases, counts):
                results = slice(first, first := first + count)
                if function not in DRAWN:
                    found = find_difference(expected[results], given[results], _INEXACT.get(kinds, 1e-10))
                    wrong |= {kinds: found} if found else {}
            assert not wrong, (rows, wrong)


@pytest.mark.parametrize("name", [name for name in OPEN if name not in FAIL_ALONE])
def test_where_rows_meet_they_are_gathered(name):
    for counts, is_open in zip((*SPLITS, (3, 2)), (True, True, False)):
        simulation = _simulate(OPEN[name], is_open)
        expected = simulation.run_alone()
        for given in simulation.run(counts):
            assert not find_difference(expected, given), counts


def _merge_times(z):
    """A product over rows and times at once, of which the number of times is not fixed."""
    z = tf.gather(z, tf.range(unknown(4)), axis=1)
    rows, times = tf.unstack(tf.shape(z)[:2])
    return tf.reshape(tf.reshape(z, [rows * times, 3]) @ W, [rows, times, 4])


@pytest.mark.parametrize(
    "function",
    [
        lambda floats: tf.gradients(tf.image.resize(floats, [4, 5]), floats),
        lambda floats: tf.gradients(tf.image.resize(floats, [4, 5], "bicubic"), floats),
        lambda x: tf.reshape(tf.tanh(tf.reshape(tf.tile(x, [1, 49]), [-1, 3])), [-1, 147]),
        _merge_times,
    ],
)
def test_rows_are_not_gathered(function):
    program = _simulate(function).program
    assert all(isinstance(value.placement, Sharded) for value in program.outputs)
    program.gives = [value.placement for value in program.outputs]
    assert not program.has_collectives


def test_numbers_without_a_seed_are_the_same_on_all_ranks():
    """Unless they are drawn for rows: any are as good for these."""

    def draw(x):
        return tf.random.normal([3]), tf.random.uniform([2], maxval=9, dtype=tf.int32), tf.random.gamma([2], 2.0)

    first, second = _simulate(draw).run((3, 2))
    assert not find_difference(first, second, 0)
    assert (first[0] != 0).all()
