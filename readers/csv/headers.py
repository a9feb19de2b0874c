"""Reads the head of a CSV file: delimiter, names of columns, and sample records that determine the types.

The head is the beginning of the file's text, after decompression. It still has the lines of skiprows= and comments.
`format` reads the head of the first file once, for delimiter, names and sample. Of each other file it needs only the
names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import errors, joined_text, records
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.csv.joined_text import BOM, TextFile
from matex_tf.readers.csv.marks import Marks

HEAD_BYTES = 1 << 20
"""Length of the first file's head: enough records to determine the types."""
_FIRST_BYTES = 1 << 12
"""Length of another file's head at first. It usually suffices, since only the first record is needed."""
_DELIMITERS = ",;\t|"


def _format_columns(names: Sequence[str]) -> str:
    return f"{len(names)}: {files.format_names(names)}" if len(names) > 12 else ", ".join(names)


def sniff_delimiter(path: Path, head: bytes, dialect: Dialect) -> str:
    """The delimiter in the first line; a comma if the line has none. In names such as x.tsv or x.tsv.gz it is a tab."""
    if ".tsv" in path.suffixes:
        return "\t"
    begin = dialect.skip_lines(head, len(BOM) if head.startswith(BOM) else 0)
    # `begin` is None if the head ends before the lines of skiprows= do. Then any delimiter does: a file that is too
    # short is an error of `read_names`.
    text = dialect.marks.remove_comments(head[begin or 0 :]).lstrip(b"\r\n")
    line = dialect.marks.drop_quoted(text).partition(b"\n")[0].decode("utf-8", "replace")
    # The first of `marks` that is in the line is the delimiter. Marks that may be part of numbers come last: in
    # "1,5;2,5" all commas are between digits, so the delimiter is ";". In "1,5" it is ",".
    commas_are_in_numbers = line.count(",") == len(re.findall(r"(?<=\d),(?=\d)", line))
    number_marks = (dialect.decimal, dialect.thousands, "," if commas_are_in_numbers else None)
    marks = sorted(_DELIMITERS, key=lambda mark: mark in number_marks)
    return next((mark for mark in marks if mark in line), ",")


def read_names(file: Path, head: bytes, header: bool, dialect: Dialect) -> tuple[list[str], int]:
    """Returns the names of the columns and the offset of the first record. Without a header the names are "0", "1", ...

    `head`: the first `HEAD_BYTES` of the file, if they have been read already; else empty.

    Raises ReaderError if the file has no record, or ends its lines with carriage returns alone.
    """

    def read(start: int, stop: int) -> bytes:
        return head[start:stop]

    length = HEAD_BYTES if head else _FIRST_BYTES
    head = head or joined_text.read_head(file, length, dialect)
    # Enlarge the head until it has the complete first record: the header, or the first values without a header.
    while True:
        # `begin`: the offset after the lines of skiprows=; None if the head ends before. `after_first`: the offset
        # after the first record; the end of the head if the record does not end before.
        begin = dialect.skip_lines(head, len(BOM) if head.startswith(BOM) else 0)
        after_first = len(head) if begin is None else records.skip_records(read, begin, len(head), 1, dialect.marks)
        if after_first < len(head) or len(head) < length:  # the head has more than the record, or the complete file
            break
        length *= 16
        head = joined_text.read_head(file, length, dialect)
    if begin is None:
        raise ReaderError(f"{file}: expected more lines than the {dialect.skiprows} of skiprows, found none")
    line_number = 1 + head[:begin].count(b"\n")  # of the line at `begin`, for messages
    line = errors.clean_block(head[begin:after_first], dialect, lambda: f"{file}, line {line_number}")
    # Only newlines end records. If carriage returns end the lines, the whole file is one record without a newline. A
    # quoted value may contain carriage returns.
    if b"\r" in line.strip() and b"\n" not in line and not (dialect.marks.quote and dialect.marks.quote in line):
        raise ReaderError(f"{file}: expected lines that end with a newline, found carriage returns alone")
    if not line.strip():
        raise ReaderError(f"{file}: expected a table, found only empty lines")
    # `line` also has the empty lines before the record, which are rows without values.
    rows = errors.read_rows(file, line, dialect, line_number)
    values = next((row for _, row in rows if row), [])
    if header:
        return [name.strip() for name in values], after_first
    return [str(number) for number in range(len(values))], begin


def check_same(file: Path, names: list[str], header: bool, first_file: Path, expected_names: Sequence[str]) -> None:
    """Raises ReaderError if a file has other columns than the first file."""
    if names != expected_names:
        subject = "the header" if header else "as many columns as"
        raise ReaderError(
            f"{file}: expected {subject} of {first_file}, {_format_columns(expected_names)}; found "
            f"{_format_columns(names)}"
        )


def sample_records(text_files: Sequence[TextFile], head: bytes, dialect: Dialect) -> tuple[bytes, Path, int]:
    """The records in the first MiB of the first file that has records, which determine the types of the columns.

    Returns the bytes of the records, the file, and the line of the first record. If no file has records, the bytes are
    empty lines at most, of the last file.

    head: the head of the first file.
    """
    for file_index, text_file in enumerate(text_files):
        length = HEAD_BYTES
        text = joined_text.read_head(text_file.path, length, dialect) if file_index else head
        # Enlarge the head until it has a complete record.
        while not (end := _find_records_end(text, text_file.start, length, dialect.marks)):
            length *= 4
            text = joined_text.read_head(text_file.path, length, dialect)
        sample, line = text[text_file.start : end], 1 + text[: text_file.start].count(b"\n")
        if sample.strip():  # not only a header
            break
    return sample, text_file.path, line


def _find_records_end(head: bytes, start: int, length: int, marks: Marks) -> int:
    """The offset after the last complete record in a head of up to `length` bytes; 0 if there is none.

    start: the offset of the first record.
    """
    if len(head) < length:  # the complete file: its last record may lack a newline
        return len(head)
    # The search has two results: for a text that begins outside of quotes, or inside. A first record begins outside.
    return records.search_records(lambda begin, end: head[begin:end], start, length, marks).outside.last_end or 0
