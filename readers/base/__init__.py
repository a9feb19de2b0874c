"""What all formats use. `formats.Format` is the class that a format subclasses: open, count rows, read rows a to b.

Reads of a data set are collective: `agreement` raises an error of one rank on all ranks. `files` finds the files of a
pattern and compares them between ranks, `unpacking` decompresses them once for each host, `stored` reads bytes of a
plain or unpacked file, and `unchanged` detects files that change after they were opened.
"""
