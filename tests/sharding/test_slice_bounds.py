"""The arithmetic of shares: no row lost, none twice, for every count and every number of ranks."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.sharding import apportion, shard_arrays, slice_bounds
from matex_tf.steps import own_arrays

RANKS = (1, 2, 3, 4, 7)
COUNTS = (0, 1, 2, 3, 5, 8, 61, 1000)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("n", COUNTS)
def test_rows_of_deals_every_row_once_and_evenly(n, size):
    bounds = [slice_bounds.deal_block(n, rank, size) for rank in range(size)]
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(n))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("n", COUNTS)
def test_slice_bounds_gives_a_row_to_ranks_without_any(n, size):
    own = 0
    for rank in range(size + 2):  # the last two only serve
        start, stop, has_rows = slice_bounds.find_slice_bounds(n, rank, size)
        assert has_rows == (rank < min(n, size))
        assert stop - start >= min(1, n)
        if has_rows:
            own += stop - start
        else:
            assert (start, stop) == (0, min(1, n))
    assert own == n


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_slice_bounds_of_tensors_are_those_of_ints(dtype):
    @tf.function
    def traced(n, size):
        return [slice_bounds.find_slice_bounds(n, rank, size) for rank in range(size + 1)]

    for size in RANKS:
        for n in COUNTS:
            expected = [slice_bounds.find_slice_bounds(n, rank, size) for rank in range(size + 1)]
            for found in (
                traced(tf.constant(n, dtype), size),
                [slice_bounds.find_slice_bounds(tf.constant(n, dtype), r, size) for r in range(size + 1)],
            ):
                assert [tuple(x.numpy().item() for x in bounds) for bounds in found] == expected
                assert all(bounds[0].dtype == dtype and bounds[1].dtype == dtype for bounds in found)


def _components():
    dense = np.arange(24.0).reshape(6, 4)
    return {
        "tensor": tf.constant(dense),
        "strings": tf.constant(list("abcdef")),
        "ragged": tf.RaggedTensor.from_row_lengths(tf.range(9), [2, 0, 3, 1, 3, 0]),
        "sparse": tf.sparse.from_dense(np.where(dense % 3 == 0, dense, 0)),
    }


def _dense(x):
    if isinstance(x, tf.SparseTensor):
        return tf.sparse.to_dense(x).numpy()
    if isinstance(x, tf.RaggedTensor):
        return np.array(x.to_list(), dtype=object)
    return np.asarray(x)


@pytest.mark.parametrize("kind", ["tensor", "strings", "ragged", "sparse"])
@pytest.mark.parametrize("bounds", [(0, 6), (0, 2), (2, 5), (4, 6), (3, 3)])
def test_slice_rows_of_every_kind_eager_and_traced(kind, bounds):
    component = _components()[kind]
    start, stop = bounds
    expected = _dense(component)[start:stop]
    traced = tf.function(lambda x, a, b: slice_bounds.slice_rows(x, a, b))
    outside = tf.function(lambda a, b: slice_bounds.slice_rows(component, a, b))
    for found in (
        slice_bounds.slice_rows(component, start, stop),
        slice_bounds.slice_rows(component, tf.constant(start), tf.constant(stop)),
        traced(component, start, stop),
        traced(component, tf.constant(start, tf.int64), tf.constant(stop, tf.int64)),
        outside(tf.constant(start), tf.constant(stop)),
    ):
        assert found.shape[0] == stop - start
        assert _dense(found).tolist() == expected.tolist()


def test_slice_rows_leaves_what_has_no_rows():
    scalar = tf.constant(3.0)
    assert slice_bounds.slice_rows(scalar, 0, 1) is scalar
    assert slice_bounds.slice_rows(None, 0, 1) is None


@pytest.mark.parametrize("value", [np.float32(2.0), np.arange(6, dtype=np.float32)])
def test_slice_rows_of_unknown_rank(value):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def traced(x):
        return slice_bounds.slice_rows(x, tf.constant(1), tf.constant(3))

    expected = value[1:3] if np.ndim(value) else value
    np.testing.assert_array_equal(traced(value), expected)


def test_slice_rows_names_the_type_it_cannot_slice():
    with pytest.raises(TypeError, match="object"):
        slice_bounds.slice_rows(object(), 0, 1)


def test_share_mark_survives_numpy():
    share = shard_arrays.as_shard(np.arange(12, dtype=np.uint8).reshape(4, 3)).copy()
    kept = [
        share[1:],
        share[[0, 2]],
        share[share[:, 0] > 2],
        share.astype("float32"),
        share / 255.0,
        1 - share,
        share.reshape(-1, 1),
        share.copy(),
        share[..., np.newaxis],
        np.expand_dims(share, -1),
        np.concatenate([share, share]),
        np.concatenate([np.zeros((1, 3)), share]),
        np.where(share > 3, share, 0),
        np.zeros_like(share),
        np.take(share, [1, 2], 0),
        np.stack([share, share], axis=1),
        np.asarray(share),
        np.asarray(share)[1:3],
        np.array_split(share, 2)[0],
        np.repeat(share, 2, axis=0),
        np.ascontiguousarray(share),
    ]
    assert [i for i, array in enumerate(kept) if not shard_arrays.is_shard(array)] == []
    assert not shard_arrays.is_shard(np.arange(3))
    assert not shard_arrays.is_shard([1, 2])
    assert not shard_arrays.is_shard(None)


def test_share_reductions_are_numbers():
    share = shard_arrays.as_shard(np.arange(12.0).reshape(4, 3))
    for number in (share.sum(), share.mean(), np.max(share), share.std(), share[0, 1], np.median(share)):
        assert not isinstance(number, np.ndarray)
    assert isinstance(share.mean(axis=0), np.ndarray)
    np.testing.assert_array_equal(tf.constant(share), np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize(
    "counts", [[10, 10], [11, 10], [4, 4, 3], [1, 1, 1, 0], [0, 5], [7, 1, 30, 2], [61] * 4, [3], [0, 0]]
)
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 64])
def test_share_steps_use_every_row_once_and_evenly(counts, batch_size):
    total, before = sum(counts), [0] * len(counts)
    steps = -(-total // batch_size)
    for step in range(steps):
        after = apportion.apportion_rows(counts, (step + 1) * batch_size)
        rows, before = [b - a for a, b in zip(before, after, strict=True)], after
        assert sum(rows) == min(batch_size, total - step * batch_size)
        assert min(rows) >= 0
        for count, given in zip(counts, rows, strict=True):
            assert abs(given - min(batch_size, total - step * batch_size) * count / total) < 2
    assert before == counts


def test_share_rows_taken_never_falls_and_follows_the_order_of_places():
    counts = [7, 1, 30, 2, 5]
    places = sorted(((2 * row + 1) / (2 * n), rank) for rank, n in enumerate(counts) for row in range(n))
    for rows in range(sum(counts) + 1):
        expected = [sum(1 for _, rank in places[:rows] if rank == r) for r in range(len(counts))]
        assert apportion.apportion_rows(counts, rows) == expected


@pytest.mark.parametrize("size", (1, 2, 3, 4, 7))
def test_shard_of_arrays(size):
    x, y = np.arange(10).reshape(5, 2), np.arange(5)
    parts = [shard_arrays.shard({"x": x, "pair": (y, tf.constant(y))}, rank=rank, size=size) for rank in range(size)]
    assert all(shard_arrays.is_shard(part["x"]) and shard_arrays.is_shard(part["pair"][1]) for part in parts)
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), x)
    np.testing.assert_array_equal(np.concatenate([part["pair"][1] for part in parts]), y)
    assert shard_arrays.shard(parts[0]["x"], rank=0, size=size) is parts[0]["x"]


def test_shard_of_the_wrong_thing():
    with pytest.raises(TypeError, match="given a str"):
        shard_arrays.shard("rows", rank=0, size=2)
    with pytest.raises(ValueError, match="at least one dimension"):
        shard_arrays.shard(np.array(3), rank=0, size=2)
    with pytest.raises(ValueError, match="rank=2, size=2"):
        shard_arrays.shard(np.arange(3), rank=2, size=2)
    with pytest.raises(ValueError, match="batch"):
        shard_arrays.shard(tf.data.Dataset.from_tensor_slices(np.zeros((8, 4))), rank=0, size=2)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_shard_of_a_dataset_slices_each_batch(size):
    x, y = np.arange(18).reshape(9, 2), np.arange(9)
    whole = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(4)
    parts = [shard_arrays.shard(whole, rank=rank, size=size) for rank in range(size)]
    assert all(shard_arrays.is_shard(part.map(lambda x, y: (x, y)).prefetch(1)) for part in parts)
    assert not shard_arrays.is_shard(whole)
    for batch, slices in zip(whole, zip(*parts, strict=True), strict=False):
        np.testing.assert_array_equal(np.concatenate([s[1] for s in slices]), batch[1])
        np.testing.assert_array_equal(np.concatenate([s[0]["x"] for s in slices]), batch[0]["x"])
        lengths = [len(s[1]) for s in slices]
        assert max(lengths) - min(lengths) <= 1


def test_is_batched():
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((8, 4)))
    assert slice_bounds.is_batched(rows) is False
    assert slice_bounds.is_batched(rows.batch(2).prefetch(1)) is True
    assert slice_bounds.is_batched(rows.batch(2, num_parallel_calls=2).map(lambda x: x)) is True
    assert slice_bounds.is_batched(rows.padded_batch(2)) is True
    assert slice_bounds.is_batched(rows.batch(2).unbatch().shuffle(3)) is False
    assert slice_bounds.is_batched(rows.ragged_batch(2)) is True
    assert slice_bounds.is_batched(tf.data.Dataset.from_tensors(np.zeros(3))) is None
    assert slice_bounds.is_batched(tf.compat.v1.data.Dataset.range(9).batch(3)) is True


def test_rows_that_ranks_exchange_are_dropped_with_their_dataset():
    rows = np.arange(8.0).reshape(4, 2)
    dataset = own_arrays.make_dataset((rows,), [4], 2, shuffle=False, dealt=shard_arrays.Dealt(reshuffle=1))
    assert np.concatenate([batch for (batch,) in dataset]).tolist() == rows.tolist()
    reference = weakref.ref(rows)
    del dataset, rows
    gc.collect()
    assert reference() is None


def test_dealt_rows_is_in_proportion_and_deals_every_row():
    for ratios in itertools.product(range(5), repeat=3):
        for n in range(20) if sum(ratios) else ():
            rows, total = slice_bounds.count_dealt_rows(n, ratios), sum(ratios)
            assert sum(rows) == n
            assert all(abs(count - n * share / total) < 1 for count, share in zip(rows, ratios))
            assert all(count == 0 for count, share in zip(rows, ratios) if share == 0)
            bounds = [slice_bounds.deal_block(n, rank, ratios) for rank in range(3)]
            assert bounds[0][0] == 0 and bounds[2][1] == n
            assert [stop - start for start, stop in bounds] == rows
            assert all(before[1] == after[0] for before, after in zip(bounds, bounds[1:]))


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("n", COUNTS)
def test_equal_shares_are_those_of_a_number_of_ranks(n, size):
    for rank in range(size):
        expected = slice_bounds.find_slice_bounds(n, rank, size)
        assert slice_bounds.find_slice_bounds(n, rank, (1,) * size) == expected
        assert slice_bounds.find_slice_bounds(n, rank, [37] * size) == expected
