"""Ranks cut a batch by the same shares, however far they read ahead, and together they have each row once."""

import random
import threading

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import ops
from matex_tf.sharding import pushdown, row_shares, sliced_dataset
from matex_tf.sharding.uneven import leases
from matex_tf.world import world

SIZE = 3


@pytest.fixture(autouse=True)
def ranks(monkeypatch):
    """Says which of three ranks this process is."""
    ops.get_library()  # alone

    def be(rank):
        monkeypatch.setattr(world, "get_world", lambda: world.World(rank=rank, size=SIZE))

    be(0)
    yield be
    leases.agree_on(())


@pytest.mark.parametrize("seed", range(30))
def test_ranks_that_read_ahead_cut_alike(seed):
    chance = random.Random(seed)
    made = [leases.Leases() for _ in range(SIZE)]
    iterations, next_batch = [0] * SIZE, [0] * SIZE
    cut = [{} for _ in range(SIZE)]

    def go_on(rank):
        if next_batch[rank] % leases.BATCHES == 0:
            iterations[rank], shares = made[rank].take_lease(iterations[rank], next_batch[rank])
            cut[rank][iterations[rank]] = [*cut[rank].get(iterations[rank], []), *[shares] * leases.BATCHES]
        next_batch[rank] += 1

    for epoch in range(3):
        iterations, next_batch = [0] * SIZE, [0] * SIZE
        for rank in range(SIZE):
            go_on(rank)  # they all begin before any has ended a window
        for _ in range(40):
            for _ in range(chance.randrange(12)):
                go_on(chance.randrange(SIZE))
            if chance.random() < 0.5:
                change(made, tuple(chance.randint(1, 9) for _ in range(SIZE)))
        for number in range(1, epoch + 2):
            shortest = min(len(cut[rank][number]) for rank in range(SIZE))
            assert len({tuple(cut[rank][number][:shortest]) for rank in range(SIZE)}) == 1
    assert len({shares for number in cut[0] for shares in cut[0][number]}) > 5


def change(made, shares):
    """What the ranks do together."""
    start = (0, 0)
    for one in made:
        with one.hold_pipelines() as ahead:
            start = max(start, ahead)
    for one in made:
        one.change_shares(start, shares)
    leases.agree_on(shares)


def test_a_pipeline_waits_while_ranks_agree():
    made = leases.Leases()
    made.take_lease(0, 0)
    found = []
    with made.hold_pipelines() as ahead:
        asking = threading.Thread(target=lambda: found.append(made.take_lease(1, leases.BATCHES)))
        asking.start()
        asking.join(0.1)
        assert not found and ahead == (1, leases.BATCHES)
        made.change_shares(ahead, (5, 1, 1))
    asking.join()
    assert found == [(1, (5, 1, 1))]


def test_an_iteration_before_the_last_goes_on_as_it_was():
    made = leases.Leases()
    made.take_lease(0, 0)
    made.change_shares((1, 4), (5, 1, 1))
    assert made.take_lease(0, 0) == (2, (5, 1, 1))
    made.change_shares((2, 4), (1, 5, 1))
    assert made.take_lease(1, 4) == (1, (5, 1, 1))
    assert made.take_lease(2, 4) == (2, (1, 5, 1))


def test_a_rank_that_has_begun_the_next_iteration_says_where_a_change_begins():
    made = [leases.Leases() for _ in range(2)]
    for one in made:
        one.take_lease(0, 0)
    made[0].take_lease(0, 0)
    starts = []
    for one in made:
        with one.hold_pipelines() as ahead:
            starts.append(ahead)
    for one in made:
        one.change_shares(max(starts), (5, 1, 1))
    assert made[1].take_lease(1, 4) == (1, (1, 1, 1))
    assert made[1].take_lease(0, 0) == (2, (1, 1, 1))
    assert made[0].take_lease(2, 4) == made[1].take_lease(2, 4) == (2, (5, 1, 1))


def test_what_validates_keeps_its_shares():
    made = leases.Leases(are_for_good=True)
    assert made.take_lease(0, 0) == (1, (1, 1, 1))
    leases.agree_on((5, 1, 1))
    assert made.take_lease(1, 4) == (1, (1, 1, 1))
    assert made.take_lease(0, 0) == (2, (5, 1, 1))
    assert made.take_lease(1, 8) == (1, (1, 1, 1))


def source():
    return tf.data.Dataset.range(23).map(lambda row: (row, tf.fill([2], row)), num_parallel_calls=2)


PIPELINES = {
    "batched": lambda: source().batch(7).shuffle(2, seed=1),
    "mapped": lambda: source().batch(7),
    "dropped": lambda: source().batch(7, drop_remainder=True).prefetch(2),
    "repeated": lambda: source().batch(7).repeat(3),
    "dropped and repeated": lambda: source().batch(7, drop_remainder=True).repeat(2).prefetch(1).repeat(2),
    "few": lambda: source().batch(2),
    "one number": lambda: tf.data.Dataset.range(23).map(lambda row: {"a": row}, num_parallel_calls=2).batch(5),
    "out of order": lambda: tf.data.Dataset.range(40).map(lambda x: x, 4, deterministic=False).batch(7),
}
SHARES = [(1, 1, 1), (5, 1, 1), (1, 90, 2), (1, 0, 0), (3, 2, 1)]


class Changing(leases.Leases):
    """Other shares each time that they are asked for."""

    def take_lease(self, iteration, batch):
        number, _ = super().take_lease(iteration, batch)
        return number, SHARES[batch // leases.BATCHES % len(SHARES)]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_ranks_have_each_row_once(name, ranks):
    wholes = [tf.nest.flatten(tf.nest.map_structure(lambda x: x.numpy(), one)) for one in PIPELINES[name]()]
    parts = []
    for rank in range(SIZE):
        ranks(rank)
        dataset, _ = pushdown.push_down_slices(PIPELINES[name](), False, lambda first: None, Changing())
        parts.append(list(dataset))
        assert int(dataset.cardinality()) in (len(wholes), -2) or name == "batched"
    assert [len(part) for part in parts] == [len(wholes)] * SIZE
    seen = []
    for batch, whole in enumerate(wholes):
        shares, of_rows = SHARES[batch // leases.BATCHES % len(SHARES)], len(whole[0])
        for rank, count in enumerate(row_shares.count_dealt_rows(of_rows, shares)):
            mine = parts[rank][batch]
            assert mine.numbers.numpy().tolist() == [count / of_rows, count > 0, count > 0, of_rows]
            assert len(tf.nest.flatten(mine.data)[0]) == max(count, 1)
        own = [tf.nest.flatten(part[batch].data) for part in parts if part[batch].numbers[1] > 0]
        for place, want in enumerate(whole):
            found = np.concatenate([one[place].numpy() for one in own])
            seen.append((found, want))
            if name != "out of order":
                np.testing.assert_array_equal(found, want)
    if name == "out of order":
        found, want = (np.sort(np.concatenate(one)) for one in zip(*seen))
        np.testing.assert_array_equal(found, want)


def test_indices_of_arrays_are_cut(ranks):
    for rank in range(SIZE):
        ranks(rank)
        indices = tf.data.Dataset.range(100).batch(9)
        for batch, (mine, whole) in enumerate(zip(sliced_dataset.slice_dataset(indices, print, Changing()), indices)):
            shares = SHARES[batch // leases.BATCHES % len(SHARES)]
            start, stop, _ = row_shares.find_slice_bounds(len(whole), rank, shares)
            assert mine.data.numpy().tolist() == whole[start:stop].numpy().tolist()
