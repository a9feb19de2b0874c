"""The runtime of a rank: exchanges of Python objects, hooks, output and errors, and the end of a run.

`attach` installs it: `hooks` (with `keras_table`, `loop_hooks`), `excepthook`, `seeding`, `watchdog`. `objects` are the
collectives of Python objects; `first_rank` does work on rank 0 for all; `real_files` lets a thread use the real files.

The end of a run, in this order:

1. A script ends: by `atexit`, `shutdown.end_rank` lets all ranks meet, exchange exit codes, and finalize MPI. Functions
   in the lists of `shutdown` run before and after. `exit_codes` of `world` has the code of the script.
2. Or it fails: `excepthook` gets the error, `tracebacks` makes its text. A rank that fails because another rank has
   failed (`losses`) waits for that rank. The failed rank calls `shutdown.abort_with_error`: it writes open files
   (`open_files`), records the error (`rank_records`), lets rank 0 come as far (`failed_ranks`), and aborts all ranks.
   `thread_errors` keeps errors of other threads until then.
3. Or ranks wait too long: `watchdog` reports a stall (`stalls`), and aborts all ranks with exit code 70.
4. Or a signal asks for the end: `end_requests`; the run keeps its state and ends.

`matex run` reads the records of all ranks, shows the first error, and removes what killed ranks have left
(`shared_memory`, `temp_folders`). Without `matex run`, the first failed rank shows its error itself.

Terms: a record is the file in which a rank says how it ends. A failed rank is about to end the job for its error. A
claim is a locked file by which one rank reserves the terminal. A note is one line for the user. `script_frames` tells
frames of the script from frames of libraries; `atomic` saves files so that no reader sees a part.
"""
