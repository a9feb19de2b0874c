"""The rows of a data set: which rank has which, and what is made of them. Independent of the file format.

A *part* is "training", "validation" or "testing"; a *field* is "data" or "labels"; a *position* is the number of a row
within its part. `DataSet` calls these modules in this order:

1. `opening` opens the files on all ranks. A *survey* is a pass in which each rank searches its range of the files, and
   every rank uses all results: some formats need it to count rows.
2. `layout` splits rows into parts and assigns them to ranks: a `Deal` says which rows of a part a rank has.
3. `samples` reads this rank's rows, with windows, missing values (`missing`) and scaling (`scaling`).
4. `loaded_rows` holds them in memory; `redistribute` sends rows that a survey has read to the ranks that own them.
5. `batches` selects this rank's rows of each global batch; `streaming` reads them while a dataset is iterated.
"""
