"""Tables with typed columns: Parquet and TFRecord."""
