"""Pieces are equal, cover everything once, and lie in the order of the ranks."""

import random

import pytest

from matex_tf.servers.pieces import partition, piece_copies


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_has_one_owner_and_owners_have_as_many(seed):
    draw = random.Random(seed)
    ranks = draw.randint(1, 9)
    sizes = [draw.choice([0, 1, 2, draw.randint(3, 400)]) for _ in range(draw.randint(1, 8))]
    width = draw.choice([2, 4, 8])
    check_pieces(partition.cut_variables(sizes, ranks, width), sizes, ranks, width)
    of_each = partition.cut_each_variable(sizes, ranks, width)
    check_pieces(of_each, sizes, ranks, width)
    for variable, size in enumerate(sizes):
        owned = [last - first for first, last in (of_rank[variable] for of_rank in of_each)]
        assert max(owned) * width < size * width / ranks + 2 * partition.ALIGNED


def check_pieces(found, sizes, ranks, width):
    for variable, size in enumerate(sizes):
        entries = [entry for rank in range(ranks) for entry in range(*found[rank][variable])]
        assert entries == list(range(size))
    owned = [sum(last - first for first, last in of_rank) for of_rank in found]
    assert (max(owned) - min(owned)) * width < 2 * partition.ALIGNED
    cuts = [first * width for of_rank in found for (first, _), size in zip(of_rank, sizes) if 0 < first < size]
    assert all(place % partition.ALIGNED == 0 for place in cuts)


def test_fewer_entries_than_ranks():
    assert partition.cut_variables([1, 1], 4, 4) == [
        [(0, 0), (0, 0)],
        [(0, 1), (0, 0)],
        [(1, 1), (0, 0)],
        [(1, 1), (0, 1)],
    ]


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
    # Of those near it is an owner, also a further one; but the copy goes to no other node for that.
    assert keepers([0, 0, 0, 3], [0, 2])[0] == 2 and keepers([0, 0, 0], [1])[1] == 2
    assert keepers([0, 1, 2, 3], [0, 1])[:2] == [1, 0] and keepers([0, 0, 2, 2], [0, 2])[0] == 1
