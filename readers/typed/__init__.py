"""Tables whose files tell the type of each column: Parquet and TFRecord."""
