"""Rows kept in opening come to the ranks whose they are, whatever the distribution, the split and the cuts."""

import threading
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.readers import Format
from matex_tf.readers.base.formats import PARTS, KeptRows
from matex_tf.readers.rows import redistribute
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import Source
from matex_tf.sharding.shard_arrays import ShardArray


class Numbers(Format):
    """So many rows."""

    def __init__(self, rows):
        self.rows = rows

    def count(self, part):
        return self.rows if part == "training" else 0

    def read(self, part, field, start, stop):
        raise AssertionError("no row has to be read again")


class Threads:
    """Alltoallv among threads."""

    def __init__(self, size):
        self.size, self.barrier, self.sent = size, threading.Barrier(size, timeout=20), {}

    def of(self, rank):
        def alltoallv(send, receive):
            self.sent[rank] = np.split(send[0], np.cumsum(send[1])[:-1])
            self.barrier.wait()
            pieces = [self.sent[other][rank] for other in range(self.size)]
            assert [len(piece) for piece in pieces] == list(receive[1])
            receive[0][:] = np.concatenate(pieces)
            self.barrier.wait()

        return mock.Mock(Alltoallv=alltoallv)


def buffers(rows, cuts):
    """The rows in arrays of their own, which may be made shorter."""
    found = []
    for piece in np.split(rows, cuts):
        found.append(ShardArray(piece.shape, piece.dtype))
        found[-1][...] = piece
    return found


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(any),
    st.sampled_from(["block", "cyclic", "batch"]),
    st.sampled_from(["last", "spread"]),
    st.sampled_from([0.0, 0.25, 0.4]),
    st.integers(1, 9),
    st.integers(1, 200),
    st.integers(0, 9),
    st.integers(0, 1),
)
def test_every_row_comes_to_its_rank(counts, distribution, how, fraction, batch_size, round_bytes, cut, servers):
    total, size = sum(counts), len(counts)
    servers, of = min(servers, size - 1), batch_size if distribution == "batch" else None
    data = np.arange(3 * total).reshape(total, 3) / 2
    fields = {"data": data, "labels": np.arange(total)}
    source = Source(Numbers(total), (fraction, fraction / 2, how), None, 1)
    deals = {part: Deal(source.count_samples(part), size, distribution, of, servers) for part in PARTS}
    threads, starts = Threads(size), np.concatenate([[0], np.cumsum(counts)])
    results = [None] * size

    def one(rank):
        mine = {field: rows[starts[rank] : starts[rank + 1]] for field, rows in fields.items()}
        held = KeptRows(counts, {field: buffers(rows, [min(cut, len(rows))]) for field, rows in mine.items()})
        results[rank] = arrays = redistribute.allot_arrays(deals, rank, held)
        redistribute.send_rows(source, deals, rank, held, arrays, threads.of(rank))
        assert all(sum(map(len, rows)) == 0 for rows in held.rows.values()), "memory is given back"

    workers = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    with mock.patch.multiple(redistribute, _ROUND_BYTES=round_bytes, _ROUNDS=10**9):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    for rank, arrays in enumerate(results):
        for part in PARTS:
            if not source.count_samples(part):
                continue
            held = deals[part].count_held(rank)
            positions = deals[part].list_positions(rank, 0, held) if held else np.zeros(1, np.int64)
            rows = source.find_rows(part, positions)[1]
            for field, whole in fields.items():
                np.testing.assert_array_equal(arrays[part, field], whole[rows])


def test_one_rank_keeps_its_rows_where_they_lie():
    source = Source(Numbers(10), (0.2, 0.1, "last"), None, 1)
    data = np.arange(10.0)
    found = redistribute.view_all_rows(source, KeptRows([10], {"data": buffers(data, [])}))
    assert [found[part, "data"].tolist() for part in PARTS] == [[*range(7)], [7, 8], [9]]
    assert found["training", "data"].base is found["testing", "data"].base
    assert redistribute.view_all_rows(source, KeptRows([10], {"data": buffers(data, [4])})) is None
    assert redistribute.view_all_rows(source, KeptRows([5, 5], {"data": buffers(data[:5], [])})) is None
    spread = Source(Numbers(10), (0.2, 0.1, "spread"), None, 1)
    assert redistribute.view_all_rows(spread, KeptRows([10], {"data": buffers(data, [])})) is None
