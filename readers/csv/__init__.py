"""The CSV format. Each rank reads and parses a contiguous range of the bytes of all files.

`format` opens the files: `headers` reads the head of each file (delimiter, names, sample), `dialect` has the options of
spelling, `joined_text` numbers the bytes of all records. In surveys, `records` finds the ends of records, which may be
quoted (`marks`), and `parse` parses them on the way. `table` lets pyarrow parse blocks of records to columns; `convert`
handles spellings of numbers that pyarrow does not know. `errors` and `number_like` explain what is wrong in a file.
"""
