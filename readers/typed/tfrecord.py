"""The TFRecord format: records of tf.train.Example. Each rank reads and parses its own records.

Records have different lengths, and a file has no table of their offsets. So when a data set is opened, each rank
searches its range of the bytes (`_survey_index`). From the results of all ranks, every rank makes an `Index` with the
offsets of some records, from which it finds any record (`_settle_index`, `record_index.py`). This is a survey (see
`Format`), "index". An earlier survey, "unpack", decompresses files.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import pa, tf
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import Ranks, ReaderError, make_dtype, register, split_range
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.readers.base.unpacking import DAMAGED_GZIP, GZIP, Unpacking
from matex_tf.readers.tables.columns import Column, FindPlace
from matex_tf.readers.typed.format import TypedTable
from matex_tf.readers.typed.record_index import FRAME, HEAD, Index, Part, find_part, is_head
from matex_tf.runtime import real_files
from matex_tf.sharding import slice_bounds

_HEAD_BYTES = 1 << 16
_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 14


@register("TFRECORD")
class TfRecord(TypedTable):
    """Records of tf.train.Example: a file, or several files that are concatenated ("part-*.tfrecord", sorted by name),
    plain or compressed by gzip or zlib.

    Args:
        labels: the feature or features of labels, by name.
        columns: the features of data, in this order; by default all features except the labels, sorted by name.
        dtype: dtype of the data (default: the stored one), or {feature: dtype}; str for a feature of text. A numeric
            dtype for a feature of bytes decodes the bytes, as `tf.io.decode_raw` does.
        shape: shape of a row of data, such as (28, 28); the values of all features of data are concatenated.
        memory: most bytes of rows that a rank keeps while it opens the data set. Default: half of the free memory,
            divided by the number of ranks of the host. Above it, rows are read when needed.

    The first 64 KiB of records, or dtype=, determine names and types. A feature of several values becomes as many
    columns. Every record must have as many values of a feature as the first; missing=0 (or "nan") pads shorter ones to
    the longest. Bytes that are text become integers, as in CSV.
    """

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[Any],
        labels: Column | Sequence[Column] | None = None,
        columns: Column | Sequence[Column] | None = None,
        dtype: Any = None,
        shape: Any = None,
        memory: int | None = None,
    ):
        super().__init__(path, memory)
        self._unchanged = Unchanged(self.files)
        self._packed = [file for file in dict.fromkeys(self.files) if _find_packing(file)]
        self._unpacking: Unpacking = Unpacking(self._packed, _open_packed, ".tfrecord")
        self._opened: dict[int, _File] = {}
        self._kinds = _learn_kinds(self.files, dtype)  # by name of a feature
        type_of_kind = {
            "float_list": pa.large_list(pa.float32()),
            "int64_list": pa.large_list(pa.int64()),
            "bytes_list": pa.large_binary(),
        }
        types = [(name, type_of_kind[kind]) for name, kind in self._kinds.items()]
        self.compared = ()  # ranks compare `describe`, with hashes of the first records, instead of the bytes of files
        first_surveys = {"unpack": bool(self._packed), "index": True}
        self._choose_columns(self.files[0], types, labels, columns, dtype, shape, first_surveys)

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return is_head(head)

    def describe(self) -> str:
        """The columns, the first records of each file, and the sizes of uncompressed files.

        A script may write its files on each rank. The order of the features in the bytes of an Example differs between
        processes, so bytes and checksums of files differ.
        """
        heads = ", ".join(_describe_records(file, file in self._packed) for file in dict.fromkeys(self.files))
        return f"{super().describe()}; {heads}"

    def _survey_index(self, ranks: Ranks) -> list[Part]:
        """The records that begin in this rank's range of all bytes."""
        sizes = [self._open_file(file_index).size for file_index in range(len(self.files))]
        start, stop = slice_bounds.deal_block(sum(sizes), ranks.rank, ranks.size)
        return [
            find_part(file_index, self._open_file(file_index).read_bytes, first, last, sizes[file_index])
            for file_index, first, last in split_range(sizes, start, stop)
        ]

    def _settle_index(self, ranks: Ranks, results: Sequence[list[Part]]) -> None:
        def search_file(number: int) -> Part:
            file = self._open_file(number)
            return find_part(number, file.read_bytes, 0, file.size, file.size)

        self._index = Index(self.files, [part for rank_parts in results for part in rank_parts], search_file)

    def count(self, part: str) -> int:
        return self._index.count if part == "training" else 0

    def find_place(self, row: int) -> str:
        return self._index.find_place(row)

    def read_batches(self, start: int, stop: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        while start < stop:
            file = self._index.find_file(start)
            file_stop = self._index.find_stop(file)
            mean_bytes = max(1, self._open_file(file).size // (file_stop - self._index.starts[file]))  # of a record
            end = min(stop, file_stop, start + max(1, min(_BATCH_BYTES // mean_bytes, _BATCH_ROWS)))
            self._unchanged.check(self.files[file])
            yield (
                start,
                self._parse_records(self._read_records(file, start, end), numbers, self.make_place_finder(start)),
            )
            start = end

    def _find_byte(self, row: int) -> int:
        """The offset of a record in its file: the index stores only some, so the lengths lead from one to the next."""
        number, file, offset = self._index.find_near(row)
        for _ in range(row - number):  # a record is its length, in a HEAD of 12 bytes, the data, and a checksum
            offset += FRAME + int.from_bytes(self._open_file(file).read_bytes(offset, offset + HEAD)[:8], "little")
        return offset

    def _read_records(self, file: int, start: int, stop: int) -> Any:
        """The data of some records, as a string tensor. Raises ReaderError for a wrong checksum."""
        open_file, offset = self._open_file(file), self._find_byte(start)
        try:
            return open_file.read_records(offset, stop - start)
        except tf.errors.OpError as error:
            if stop - start > 1:
                for row in range(start, stop):  # the damaged record raises the error with its own place
                    self._read_records(file, row, row + 1)
            raise ReaderError(
                f"{self.find_place(start)}, at byte {offset}: damaged: expected the data of a record with their "
                f"checksum, found: {error.message}"
            ) from None

    def _open_file(self, number: int) -> _File:
        """The open file `number`: uncompressed, or its decompressed copy, which stays open."""
        path = self.files[number]
        if number in self._opened:
            return self._opened[number]
        if path in self._temporary_files:
            with real_files.use_real_files():
                self._opened[number] = _File(self._temporary_files[path])
        else:
            # Only one uncompressed file is open at a time: their number may exceed the limit of open files.
            for other_number in list(self._opened):
                if self.files[other_number] not in self._temporary_files:
                    del self._opened[other_number]
            self._opened[number] = _File(path)
        return self._opened[number]

    def _parse_records(self, records: Any, numbers: Sequence[int], find_place: FindPlace) -> Any:
        """The features `numbers` of some records, as a pyarrow record batch with columns named by number."""
        names = {number: self.columns.names[number] for number in numbers}
        kinds = {name: self._kinds[name] for name in names.values()}
        try:
            features = _parse_examples(records, kinds)
        except ValueError:
            for row in range(len(records)):  # the wrong record raises the error with its own place
                try:
                    _parse_examples(records[row : row + 1], kinds)
                except ValueError as error:
                    raise ReaderError(f"{find_place(row)}: {error}") from None
            raise
        columns = {}
        for number, name in names.items():
            values, splits = features[name]
            if kinds[name] != "bytes_list":
                columns[str(number)] = pa.LargeListArray.from_arrays(pa.array(splits), pa.array(values))
                continue
            counts = np.diff(splits)
            if (counts > 1).any():
                row = int((counts > 1).argmax())
                place = self.columns.name_value(find_place(row), number)
                raise ReaderError(f"{place}: expected one value of bytes in a record, found {counts[row]}")
            value_iterator = iter(values.tolist())
            columns[str(number)] = pa.array(
                [next(value_iterator) if count else None for count in counts], pa.large_binary()
            )
        return pa.RecordBatch.from_pydict(columns)


class _File:
    """A file of uncompressed records; readable even after its removal."""

    def __init__(self, path: Path):
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (open as long as this object is)
        self.size = os.fstat(self._file.fileno()).st_size

    def read_bytes(self, start: int, stop: int) -> bytes:
        return files.read_at(self._file.fileno(), start, stop - start)

    def read_records(self, offset: int, count: int) -> Any:
        """The data of `count` records from offset `offset`, as a string tensor. TensorFlow checks the checksums."""
        # Raw ops: tf.data's classes have hooks for the script. Without a buffer these ops read no other records.
        raw_ops, types = tf.raw_ops, [tf.string]
        with real_files.use_real_files(), _compute_eagerly():
            count_tensor = tf.constant(count, tf.int64)
            records = raw_ops.TFRecordDatasetV2(
                filenames=[f"/proc/self/fd/{self._file.fileno()}"],
                compression_type="",
                buffer_size=tf.constant(0, tf.int64),
                byte_offsets=tf.constant([offset], tf.int64),
            )
            taken_records = raw_ops.TakeDataset(
                input_dataset=records, count=count_tensor, output_types=types, output_shapes=[[]]
            )
            batch = raw_ops.BatchDatasetV2(
                input_dataset=taken_records,
                batch_size=count_tensor,
                drop_remainder=False,
                output_types=types,
                output_shapes=[[None]],
            )
            (record_data,) = raw_ops.DatasetToSingleElement(dataset=batch, output_types=types, output_shapes=[[None]])
        return record_data


@contextlib.contextmanager
def _compute_eagerly() -> Iterator[None]:
    """Run eagerly on a CPU, even if a TensorFlow 1 script has disabled eager execution."""
    from tensorflow.python.eager import context

    with context.eager_mode(), tf.device("CPU:0"):
        yield


def _find_packing(path: Path) -> str:
    """Return "gzip", "zlib", or "" for uncompressed records. Raises ReaderError for other files."""
    head = files.read_head(path, HEAD)
    if not head or is_head(head):
        return ""
    if head.startswith(GZIP):
        return "gzip"
    # The header of zlib: deflate with a window of 32 KiB; two bytes that are a multiple of 31.
    if head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    raise ReaderError(
        f"{path}: expected a TFRecord file, which begins with a length and its checksum; found "
        f"{files.describe_head(head)}"
    )


class _ZlibFile:
    """A file of zlib data, read decompressed."""

    def __init__(self, file: Any):
        self._file, self._inside = file, zlib.decompressobj()

    def read(self, count: int) -> bytes:
        while not self._inside.eof:
            packed_bytes = self._inside.unconsumed_tail or self._file.read(1 << 16)
            if not packed_bytes:
                raise EOFError("the file ends before its zlib stream")
            if data := self._inside.decompress(packed_bytes, count):
                return data
        return b""


@contextlib.contextmanager
def _open_packed(path: Path) -> Iterator[Any]:
    """Open the records of a compressed file at the beginning. Raises ReaderError if the file is damaged."""
    packing = _find_packing(path)
    try:
        if packing == "gzip":
            with gzip.open(path) as file:
                yield file
        else:
            with open(path, "rb") as raw_file:
                yield _ZlibFile(raw_file) if packing else raw_file
    except DAMAGED_GZIP as error:
        raise ReaderError(f"{path}: truncated or damaged: expected {packing} data, found: {error}") from None


def _read_head(path: Path) -> list[bytes]:
    """The data of the records in the first 64 KiB of a file; at least one record if there is one."""
    records: list[bytes] = []
    size = 0
    with _open_packed(path) as file:
        while size < _HEAD_BYTES and (head := files.read_all(file, HEAD)):
            length = int.from_bytes(head[:8], "little")
            if not is_head(head) or len(data := files.read_all(file, length + 4)) < length + 4:
                break  # the index reports it
            records.append(data[:length])
            size += FRAME + length
    return records


def _describe_records(path: Path, is_packed: bool) -> str:
    """The name of a file, its size if it is not compressed, and a hash of its first records."""
    from google.protobuf.message import DecodeError

    digest = hashlib.blake2b(digest_size=4)
    for record in _read_head(path):
        with contextlib.suppress(DecodeError):  # opening or reading reports it
            record = tf.train.Example.FromString(record).SerializeToString(deterministic=True)
        digest.update(record)
    size = "" if is_packed else f" of {path.stat().st_size} bytes"
    return f"{path.name}{size} ({digest.hexdigest()})"


def _learn_kinds(paths: Sequence[Path], dtype: Any) -> dict[str, str]:
    """The kind of each feature, such as "float_list", by name in alphabetical order.

    The first records of the first file that has records determine it, and dtype= for features that they lack.
    """
    from google.protobuf.message import DecodeError

    records, path = [], paths[0]
    for path in paths:
        records = _read_head(path)
        if records:
            break
    kinds: dict[str, str] = {}
    for record_number, record in enumerate(records):
        try:
            # An Example has the encoding of a SequenceExample without `feature_lists`.
            example = tf.train.SequenceExample.FromString(record)
            if example.feature_lists.feature_list:
                names = files.format_names(example.feature_lists.feature_list)
                raise ReaderError(
                    f"{path}, record {record_number}: expected a tf.train.Example, found a SequenceExample with lists "
                    f"of features ({names}); write their values to features of an Example"
                )
            features = example.context.feature
        except DecodeError as error:
            if record_number:
                break  # damaged; reading reports the wrong checksum
            raise ReaderError(f"{path}, record {record_number}: expected a tf.train.Example, found: {error}") from None
        for name, feature in features.items():
            kind = feature.WhichOneof("kind")
            if kind and kinds.setdefault(name, kind) != kind:
                raise ReaderError(
                    f"{path}, record {record_number}: expected {kinds[name]} in the feature {name!r}, as in records "
                    f"before, found {kind}"
                )
    if isinstance(dtype, Mapping):
        for name, given_dtype in dtype.items():
            if isinstance(name, str) and name not in kinds:
                kind_of_dtype = {"f": "float_list", "U": "bytes_list"}
                kinds[name] = kind_of_dtype.get(make_dtype(given_dtype).kind, "int64_list")
    if not kinds:
        raise ReaderError(f"{path}: expected a record with features, found none")
    return dict(sorted(kinds.items()))


def _parse_examples(records: Any, kinds: Mapping[str, str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each feature of some Examples, its values and the row splits of the records.

    Raises ValueError for a record that is not an Example, or has values of another kind.
    """
    dtypes = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
    features = {name: tf.io.RaggedFeature(dtypes[kind], row_splits_dtype=tf.int64) for name, kind in kinds.items()}
    with _compute_eagerly():
        try:
            parsed = tf.io.parse_example(records, features)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"expected a tf.train.Example with {dict(kinds)}, found: {error.message}") from None
        return {name: (feature.values.numpy(), feature.row_splits.numpy()) for name, feature in parsed.items()}
