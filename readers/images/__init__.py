"""The image formats: `mnist` (IDX files: `idx`) and `cifar` (binary, or pickles of plain values: `plain_pickles`).

Both read folders as downloaded; `archives` extracts files of a tar archive.
"""
