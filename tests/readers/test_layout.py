"""Which rows are whose: none lost, none twice, for every number of ranks and every count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.readers.rows import streaming
from matex_tf.readers.rows.layout import Deal, Split
from matex_tf.sharding import slice_bounds

counts = st.integers(0, 200)
sizes = st.integers(1, 9)
fractions = st.sampled_from([0.0, 0.1, 0.25, 0.333, 0.5])


@settings(deadline=None)
@given(counts, sizes, st.sampled_from(["block", "cyclic", "batch"]), st.integers(1, 40), st.integers(0, 2))
def test_every_row_is_dealt_once(count, size, distribution, batch_size, servers):
    deal = Deal(count, size + servers, distribution, batch_size if distribution == "batch" else None, servers)
    held = [deal.list_positions(rank, 0, deal.count_held(rank)) for rank in range(size + servers)]
    assert not any(map(len, held[size:]))
    assert sorted(np.concatenate(held).tolist()) == list(range(count))
    assert deal.count_all() == [len(rows) for rows in held]
    everything = np.arange(count)
    for rank, rows in enumerate(held):
        assert (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(everything[deal.find_local(rank)], rows)
        middle = len(rows) // 2
        np.testing.assert_array_equal(deal.list_positions(rank, middle, len(rows)), rows[middle:])


@settings(deadline=None)
@given(st.integers(1, 200), sizes, st.integers(1, 40), st.integers(0, 2))
def test_batches_of_the_batch_distribution_are_those_of_the_sequential_run(count, size, batch_size, servers):
    deal = Deal(count, size + servers, "batch", batch_size, servers)
    for first in range(0, count, batch_size):
        last = min(first + batch_size, count)
        before, after = deal.count_taken(first), deal.count_taken(last)
        for rank in range(size + servers):
            start, stop = slice_bounds.deal_block(last - first, rank, size)
            assert deal.list_positions(rank, before[rank], after[rank]).tolist() == list(
                range(first + start, first + stop)
            )


@settings(deadline=None)
@given(counts, fractions, st.sampled_from([0.0, 0.1, 0.3, 0.49]), st.sampled_from(["last", "spread"]))
def test_splits_share_out_all_rows(total, validation, testing, how):
    split = Split(total, validation, testing, how)
    parts = {
        part: split.list_rows(part, np.arange(split.count_rows(part))) for part in ("training", "validation", "testing")
    }
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(total))
    assert len(parts["testing"]) == round(total * testing) and len(parts["validation"]) == round(total * validation)
    for rows in parts.values():
        assert (np.diff(rows) > 0).all()
    if how == "last":
        assert parts["training"].tolist() == list(range(split.count_rows("training")))


def test_spread_rows_have_every_class_of_sorted_rows():
    split = Split(150, 0.2, 0.2, "spread")
    classes = np.repeat([0, 1, 2], 50)
    for part, expected in (("training", 30), ("validation", 10), ("testing", 10)):
        found = np.bincount(classes[split.list_rows(part, np.arange(split.count_rows(part)))])
        assert np.abs(found - expected).max() <= 1, part


def test_wrong_arguments():
    for arguments in ((10, -0.1, 0, "last"), (10, 0.5, 0.5, "last"), (10, 1.0, 0, "last"), (10, 0, 0, "first")):
        with pytest.raises(ValueError, match="DataSet: .*given"):
            Split(*arguments)
    for arguments in ((10, 2, "blocks"), (10, 2, "batch"), (10, 2, "batch", 0), (10, 2, "block", 5)):
        with pytest.raises(ValueError, match="DataSet: .*given"):
            Deal(*arguments)


@pytest.mark.parametrize("count", (0, 1, 9, 100, 1001))
@pytest.mark.parametrize("length", (1, 7, 2000))
@pytest.mark.parametrize("together", (1, 20, 5000))
@pytest.mark.parametrize("before", (0, 13))
def test_pieces_of_a_stream_are_all_rows_once(count, length, together, before):
    def cut(random):
        return [*streaming._cut_ranges(count, before, length, together, random)]

    assert [row for first, last in cut(None) for row in range(first, last)] == [*range(count)]
    pieces = cut(np.random.default_rng(1))
    assert all(0 < last - first <= length for first, last in pieces)
    assert sorted(row for first, last in pieces for row in range(first, last)) == [*range(count)]
    # The pieces of what is stored together come in order, and at most four such runs are under way at a time.
    if length < together <= count // 16:
        seen = {}
        for place, (first, _) in enumerate(pieces):
            seen.setdefault((first + before) // together, []).append((place, first))
        assert all(run == sorted(run) for run in seen.values())
        open_runs = [sum(run[0][0] <= place <= run[-1][0] for run in seen.values()) for place in range(len(pieces))]
        assert max(open_runs) <= 4
