"""One set of files for all ranks: rank 0 writes to the disk; each other rank writes to a private folder, and reads it
before the disk.

`python` installs the replacements of Python's file functions on ranks other than 0, before the script begins:

1. `queries` and `changes` act for Python. `libraries` and `tensorflow` give real paths to C code.
2. They find the key of a path (`paths`), and ask this rank's view, which `overlay` holds. `layers` reads through the
   view, `view` changes it. Queries look into a cache first (`known_places`).
3. On rank 0, an audit hook of Python, `libraries` and `tensorflow` write the journal (`journal`) before each change.
   The view of another rank reads it (`journal_reader`).
4. `children` passes the view or the journal on to processes that a rank starts.

Rank 0 acts for all ranks in `saving`, then `delivery`; in `commands`; and in `standard_input`. `downloads` lets one
rank after the other act. `mirror` copies folders for `matex run --check`, `plan` and `tune`, without a view.

- key: the canonical absolute path of a file in the script, such as `/home/me/log.txt`.
- upper layer, lower layer: the files in the private folder, at `root + key`; the files of the disk as this rank sees
  them. A file of the upper layer hides the file of the disk.
- place: the real path of a file, in one of the layers.
- note: a line of the journal, with the old content of a path, for ranks that are behind rank 0 in the script.
- hidden: a key of the disk that this rank has removed. Only rank 0 removes files of the disk.
- real files: within `use_real_files`, functions act on the disk. The view is used within it, because it calls them.
"""
