"""Pieces have nearly equal sizes, cover each entry once, and are in the order of ranks."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import errors
from matex_tf.servers.pieces import partition, piece_copies


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_has_one_owner_and_owners_have_as_many(seed):
    draw = random.Random(seed)
    ranks = draw.randint(1, 9)
    sizes = [draw.choice([0, 1, 2, draw.randint(3, 400)]) for _ in range(draw.randint(1, 8))]
    width = draw.choice([2, 4, 8])
    balance = partition.Balance(ranks, width)
    owned = [0] * ranks
    for size in sizes:
        cuts = balance.cut(size)
        assert cuts == sorted(cuts) and (cuts[0], cuts[-1], len(cuts)) == (0, size, ranks + 1)
        assert all(cut * width % partition.ALIGNED == 0 for cut in cuts if 0 < cut < size)
        mine = [last - first for first, last in itertools.pairwise(cuts)]
        assert max(mine) * width < size * width / ranks + 2 * partition.ALIGNED
        owned = [before + more for before, more in zip(owned, mine)]
        assert (max(owned) - min(owned)) * width < 2 * partition.ALIGNED  # of all variables so far


def test_owners_are_spread_over_the_nodes():
    assert partition.choose_owners([0, 0, 0, 3, 3, 3], 2) == [0, 3]
    assert partition.choose_owners([0, 0, 0, 3], 3) == [0, 1, 3]
    assert partition.choose_owners([0, 1, 0, 1], 4) == [0, 1, 2, 3]
    assert partition.choose_owners([0, 0], 1) == [0]


def test_a_copy_is_on_another_rank_of_the_node_if_there_is_one():
    def keepers(nodes, owning):
        return [piece_copies.find_keeper(rank, nodes, owning) for rank in range(len(nodes))]

    assert keepers([0, 0, 0, 3, 3], range(5)) == [1, 2, 0, 4, 3]
    assert keepers([0, 1, 1], range(3)) == [1, 2, 1]
    # An owner on the same node is preferred, although another rank is next; but no owner on another node.
    assert keepers([0, 0, 0, 3], [0, 2])[0] == 2 and keepers([0, 0, 0], [1])[1] == 2
    assert keepers([0, 1, 2, 3], [0, 1])[:2] == [1, 0] and keepers([0, 0, 2, 2], [0, 2])[0] == 1


def test_a_piece_without_a_copy_is_an_error_also_if_the_last_rank_is_lost_in_the_first_step():
    """Rank 1 of 2 is lost before any copies were sent; this process is rank 0."""
    from matex_tf.steps.piece_variables import PieceVariable

    weight = tf.Variable(tf.zeros([8]))
    slot = PieceVariable(value=tf.ones([8]), cuts=(0, 4, 8), of=weight, owner="an optimizer", name="slot")
    with pytest.raises(errors.LostRankError, match="rank 1 had a piece"):
        piece_copies.restore_lost()
    assert slot.is_in_pieces()


class Held:
    """Stands for a `PieceVariable` of four numbers, of which this rank has the last two, or all."""

    def __init__(self, number, value, is_whole=False):
        self.number, self.value, self.is_whole, self.updates = number, np.array(value, "float32"), is_whole, 5
        self.cuts, self.shape, self.dtype = (0, 2, 4), tf.TensorShape([4]), tf.float32
        self.piece = tf.constant(self.value[:0] if is_whole else self.value[2:])

    def of(self):
        return self

    def is_in_pieces(self):
        return not self.is_whole

    def numpy(self):
        assert self.is_whole
        return self.value

    def put_whole(self, value):
        self.value, self.is_whole = value, True


@pytest.mark.parametrize("here", ["whole", "in pieces"])
def test_a_variable_that_some_ranks_have_made_whole_is_restored(monkeypatch, here):
    """Rank 1 of 2 is left of three. Another variable exists on this rank only: it was not collected yet."""
    mine = [Held(0, [1, 2, 3, 4], is_whole=here == "whole"), Held(1, [0, 0, 0, 0])]
    whole, cut = np.array([1, 2, 3, 4], "float32"), []

    def allgather(told, what):
        known = told[0]._replace(is_in_pieces=here == "whole", origins=[])
        return [{0: known}, told]

    def broadcast(sent, what, root):
        assert root == int(here == "whole") and (sent is None) == (here != "whole")
        return whole.view(np.uint8) if sent is None else sent

    monkeypatch.setattr(piece_copies, "objects", SimpleNamespace(allgather=allgather, broadcast=broadcast))
    forgotten = []
    listed = SimpleNamespace(list_variables=lambda: mine, forget_variable=forgotten.append)
    monkeypatch.setattr(piece_copies, "pieces", listed)
    monkeypatch.setattr(piece_copies.membership, "list_origins", lambda: [0, 2])
    monkeypatch.setattr(piece_copies.world, "get_world", lambda: SimpleNamespace(rank=1, size=2))
    monkeypatch.setattr(piece_copies.owners, "cut_variable", lambda weight: cut.append(weight) or (0, 1, 4))
    monkeypatch.setattr(piece_copies, "_cut_for", [])
    piece_copies.restore_lost()()
    assert mine[0].is_whole and mine[0].value.tolist() == whole.tolist()
    assert cut == mine[:1] and mine[0].cuts == (0, 1, 4) and mine[1].cuts == (0, 2, 4)
    assert forgotten == [1]  # a later loss does not restore it by the cuts of three ranks
