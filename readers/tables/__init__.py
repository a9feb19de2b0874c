"""Tables: formats whose rows are pyarrow tables (CSV, Parquet, TFRecord).

`format` is their base class. `columns` says which columns are data and labels and turns a block of a table into rows;
texts become integers, their codes. `rows` stores the rows while they are read.
"""
