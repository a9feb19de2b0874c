"""Parses blocks of complete records with pyarrow. Values that pyarrow rejects are parsed by the rules of the dialect.

`table.py` calls it for the sample that determines the types, and for every block of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import arrow_csv, pa
from matex_tf.readers.csv import convert, errors
from matex_tf.readers.csv.dialect import Dialect


def parse_block(
    data: bytes,
    names: Sequence[str],
    numbers: Sequence[int],
    types: dict[int, Any] | None,
    dialect: Dialect,
    has_newlines: bool,
    find_line: Callable[[], str],
) -> Any:
    """Parse the columns `numbers` of the records in `data` into a pyarrow table. Its columns are named by their
    numbers.

    Args:
        names: the names of all columns of the file.
        types: pyarrow type of each column, by number; None infers the types from the values.
        has_newlines: whether quoted values contain newlines.
        find_line: returns file and line of the first record, for errors.
    """
    data = errors.clean_block(data, dialect, find_line)  # to UTF-8, without comments
    try:
        try:
            table = _read_table(data, names, numbers, types, dialect, has_newlines)
        except pa.ArrowInvalid:
            if types is None:
                raise
            # Numbers in a spelling that only the dialect describes: read texts, and convert them.
            text_types = {number: pa.string() if _is_number(kind) else kind for number, kind in types.items()}
            table = _read_table(data, names, numbers, text_types, dialect, has_newlines)
            for number, kind in types.items():
                if _is_number(kind):
                    table = _put_column(table, number, convert.convert_column(table[str(number)], kind, dialect))
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise errors.explain_error(data, dialect, names, types or {}, find_line(), error) from None
    for number in numbers:
        column = table[str(number)]
        # Texts may be numbers in a spelling of the dialect. Some numbers stand for missing values (`null_numbers`).
        if types is None and pa.types.is_string(column.type):
            converted = convert.recognise_column(column, dialect)
            table = table if converted is None else _put_column(table, number, converted)
        if dialect.null_numbers:
            table = _put_column(table, number, convert.drop_null_numbers(table[str(number)], dialect))
    return table


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _put_column(table: Any, number: int, column: Any) -> Any:
    """The table with another column `number`. Raises ArrowInvalid for None, a failed conversion."""
    if column is None:
        raise pa.ArrowInvalid("no number")
    name = str(number)
    return table.set_column(table.schema.get_field_index(name), name, column)


def _read_table(
    data: bytes,
    names: Sequence[str],
    numbers: Sequence[int],
    types: dict[int, Any] | None,
    dialect: Dialect,
    has_newlines: bool,
) -> Any:
    """As `parse_block`, by pyarrow alone, with pyarrow's rules for numbers. Raises ArrowInvalid for other spellings."""
    quote = dialect.marks.quote
    # pyarrow parses in blocks of its own. A record must fit into one of them, and types are inferred from the first.
    # Without newlines in values the first line shows about how long a record is. Otherwise all data are one block.
    read_options = arrow_csv.ReadOptions(
        column_names=[str(number) for number in range(len(names))],
        block_size=len(data) + 1 if has_newlines or types is None else max(1 << 20, data.find(b"\n") * 4),
    )
    parse_options = arrow_csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=chr(quote) if quote else False,
        newlines_in_values=has_newlines and quote is not None,
    )
    convert_options = arrow_csv.ConvertOptions(
        include_columns=[str(number) for number in numbers],
        column_types={str(number): kind for number, kind in types.items()} if types else None,
        null_values=dialect.nulls,
        strings_can_be_null=True,
        decimal_point=dialect.decimal,
    )
    # Arrow's own memory pool would keep the memory of the blocks.
    return arrow_csv.read_csv(
        pa.BufferReader(data), read_options, parse_options, convert_options, memory_pool=pa.system_memory_pool()
    )
