"""Compares variables between ranks. If a variable differs, all ranks get rank 0's value; a trained weight is an error.

Ranks first compare one hash of all values. If these hashes differ, they compare the variables one by one, and rank 0
sends the values that differ. Variables that have been compared are recorded, so that later calls find the new ones.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, tags
from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.sharding import fingerprint
from matex_tf.world import world

_AGREED = "number among the variables on which the ranks have agreed"
_numbers = itertools.count()
_agreed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The variables on which the ranks have agreed, by a number. All ranks number them in one order (`find_differing`), so
that a variable has the same number everywhere, unless ranks create variables of one name in different orders.
"""


def find_tf_variable(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable, also if Keras casts its reads; any other variable itself."""
    for name in ("_value", "_variable"):
        wrapped = getattr(variable, name, None)
        variable = wrapped if wrapped is not None and hasattr(wrapped, "assign") else variable
    return variable


def find_name(variable: Any) -> str:
    """The name of a variable in messages and in the layout."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "unnamed")


def find_birth(variable: Any) -> int:
    """A number that grows with each variable that this process creates.

    A script may keep variables in a set, whose order differs between ranks. The order of creation is the same on all
    ranks, except for variables that code creates for each variable of such a set (`find_differing`).
    """
    return int(find_tf_variable(variable).handle._id)


def _select_readable(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables among these, each once, in the order of their creation.

    Without variables in pieces: of such a variable a rank holds only its own piece.
    """
    readable_variables: dict[int, Any] = {}
    for variable in variables:
        tf_variable = find_tf_variable(variable)
        is_variable = hasattr(tf_variable, "assign") and hasattr(tf_variable, "handle")
        # Only a `PieceVariable` has the method.
        is_in_pieces = hasattr(tf_variable, "is_in_pieces") and tf_variable.is_in_pieces()
        if is_variable and not is_in_pieces:
            readable_variables.setdefault(id(tf_variable), variable)
    return sorted(readable_variables.values(), key=find_birth)


def read_value(variable: Any) -> np.ndarray:
    """The value of a variable, without a copy if it is in host memory. Valid until the variable is assigned to."""
    tf_variable = find_tf_variable(variable)
    with tf.device(tf_variable.device):  # otherwise a variable in host memory is copied to a GPU and back
        # Of a string, it is an array of one object.
        return np.asarray(tf_variable.read_value(), tf_variable.dtype.as_numpy_dtype)


class _Facts(NamedTuple):
    """The facts about one variable that ranks compare. dtype: NumPy's code, such as "<f4". digest: of the value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: int


_NO_VARIABLE = _Facts("no such variable", "", (), 0)


def find_differing(names: Sequence[str], values: Iterable[np.ndarray], subject: str) -> tuple[list[int], list[int]]:
    """Match this rank's variables with the other ranks' variables, and compare their values. Collective.

    names, values: of the variables, in the order of their creation. `values` is an iterable, which need not hold all
        values at once.
    Returns two lists of indices of `names`: all variables, in an order in which the ranks' variables match; and the
    variables whose values differ, in the same order.

    Variables of one name are a group, and the n-th variable of a group matches the n-th on another rank. The order of
    creation alone is not enough: an optimizer creates its variables in the order of the script's list of weights, which
    may come from a set. For the same reason, equal values of a group in another order are no difference. If the names
    differ between ranks, as after one rank alone built a second model, all variables are one group.

    Raises MismatchError on every rank if the ranks have different variables or shapes; it names the first difference.
    """
    own_facts = [
        _Facts(name, value.dtype.str, value.shape, fingerprint.digest_value(value))
        for name, value in zip(names, values)
    ]
    if len(set(objects.allgather(hashlib.blake2b(repr(own_facts).encode()).digest(), subject))) == 1:
        return list(range(len(own_facts))), []
    facts_of_ranks = objects.allgather(own_facts, f"{subject}, one by one")
    have_same_names = len({tuple(sorted(facts.name for facts in rank_facts)) for rank_facts in facts_of_ranks}) == 1
    groups_of_ranks = [collections.defaultdict[str, dict[int, _Facts]](dict) for _ in facts_of_ranks]
    for groups, rank_facts in zip(groups_of_ranks, facts_of_ranks):
        for index, facts in enumerate(rank_facts):
            groups[facts.name if have_same_names else ""][index] = facts
    order, differing_indices = list[int](), list[int]()
    for name in dict.fromkeys(itertools.chain(*groups_of_ranks)):
        group_of_ranks = [groups[name] for groups in groups_of_ranks]
        own_indices = list(group_of_ranks[world.get_world().rank])
        order += own_indices
        differing_indices += [own_indices[place] for place in _find_differing_places(group_of_ranks, subject)]
    return order, differing_indices


def _find_differing_places(group_of_ranks: Sequence[dict[int, _Facts]], subject: str) -> list[int]:
    """The places in a group, 0 for its first variable, of variables whose values differ between ranks.

    group_of_ranks: for each rank, the facts about the variables of the group, by their indices on that rank.
    """
    if len({tuple(sorted(facts[1:] for facts in group.values())) for group in group_of_ranks}) == 1:  # without the name
        return []
    hosts = world.get_world().hosts
    for rank, group in enumerate(group_of_ranks):
        for (index, expected_facts), (_, other_facts) in itertools.zip_longest(
            group_of_ranks[0].items(), group.items(), fillvalue=(len(group_of_ranks[0]), _NO_VARIABLE)
        ):
            if (expected_facts.dtype, expected_facts.shape) != (other_facts.dtype, other_facts.shape):
                raise errors.MismatchError(
                    f"the ranks' models differ. The first variable that differs is number {index} ({subject}): rank 0 "
                    f"({hosts[0]}) has {_describe_variable(expected_facts)}, rank {rank} ({hosts[rank]}) has "
                    f"{_describe_variable(other_facts)}. "
                    "Every rank must run the same script and build the same model."
                )
    digests_of_ranks = ([facts.digest for facts in group.values()] for group in group_of_ranks)
    return [place for place, digests in enumerate(zip(*digests_of_ranks)) if len(set(digests)) > 1]


def _describe_variable(facts: _Facts) -> str:
    return f"'{facts.name}' {np.dtype(facts.dtype).name}{list(facts.shape)}" if facts.dtype else facts.name


def synchronize_variables(variables: Iterable[Any], subject: str, trained: Iterable[Any] = ()) -> list[str]:
    """Give every rank rank 0's values of `variables` that differ. Collective; eager.

    Returns the names of the variables that differed; none in a script of `tf.compat.v1`, where the runs of sessions
    compare variables (`session_variables`).

    Raises MismatchError on every rank if one of `trained` differs: updates have changed it differently on the ranks.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    readable_variables = _select_readable(variables)
    names = [find_name(variable) for variable in readable_variables]
    order, differing_indices = find_differing(names, map(read_value, readable_variables), subject)
    tf_variables = list(map(find_tf_variable, readable_variables))
    trained_ids = {id(find_tf_variable(variable)) for variable in trained}
    for index in differing_indices:
        if id(tf_variables[index]) in trained_ids:
            raise errors.MismatchError(
                f"the weights have drifted apart: '{names[index]}' is not the same on all ranks ({subject}). Something "
                "in the script changes it by other amounts on each rank, such as weights that one rank alone sets or "
                "loads between steps, or an update from values that differ between ranks."
            )
    for number, index in enumerate(differing_indices):
        value = objects.broadcast(read_value(tf_variables[index]), f"sending value {number} that differs from rank 0")
        tf_variables[index].assign(value)
    for index in order:
        if tags.get_tag(tf_variables[index], _AGREED) is None:
            number = next(_numbers)
            tags.set_tag(tf_variables[index], _AGREED, number)
            _agreed[number] = tf_variables[index]
    return [names[index] for index in differing_indices]


def select_new(variables: Iterable[Any]) -> list[Any]:
    """The variables on which the ranks have not agreed yet, each once, in the order of their creation."""
    return _select_readable(
        variable for variable in variables if tags.get_tag(find_tf_variable(variable), _AGREED) is None
    )


def list_agreed() -> list[Any]:
    """The variables that all ranks once agreed on and that still exist on all of them. Collective."""
    agreed_variables = dict(_agreed.items())
    numbers_of_ranks = objects.allgather(list(agreed_variables), "which variables still live")
    return [agreed_variables[number] for number in sorted(set(agreed_variables).intersection(*numbers_of_ranks))]
