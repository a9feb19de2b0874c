"""Tables with typed columns: Parquet and TFRecord. `format` is their base class, `values` converts their columns.

`parquet` decodes this rank's row groups. `tfrecord` parses this rank's records, which `record_index` finds.
"""
