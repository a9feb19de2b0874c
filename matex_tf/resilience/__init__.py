"""Saved states of a run, restarts from them, and runs that continue with fewer ranks after a rank is lost.

A run with saved state:

1. `run_state.open_run` opens the folder (`state_files`) and finds the newest state. `script_file` tells whether it is a
   state of this script.
2. `fit_hooks` makes a `fit_state.Fit` for each call of `fit`. It saves what `state` (variables), `callback_state` and
   `random_state` read; `serialization` makes plain data of it, which `async_writer` writes.
3. In a restarted run, `resumption` restores this state, and `data_hooks` skips the data before it, by `source_data`.

A run with `--elastic`: `elastic` repeats work that a lost rank has interrupted, `elastic_step` makes each call of a
step such work, and `replay` gives the batches again.

- ended call: a call of `fit` that had ended before the restart, and is skipped.
- saved step: the position of the saved state within a call, an epoch and the number of its complete steps.
- attempt: work of all ranks that is undone and repeated if a rank is lost meanwhile.
- plain data: values that a file can hold without code.
"""
