"""Saved states of a run, restarts from them, and runs that continue with fewer ranks after a rank is lost.

Saved states (MATEX_STATE). `run_state.Run` owns the folder of states; rank 0 writes to it (`state_files`, in the
background: `async_writer`; `serialization` turns values into bytes). A saved state is one of a call of `fit`, within it
or at its end: variables (`state`), callbacks (`callback_state`), random generators (`random_state`), and a position.

- Saving: `fit_hooks` makes a `Fit` (`fit_state`) for each call of `fit`. The ranks *vote*, between steps, whether to
  save, or to leave the run for a signal or a change.
- Restoring: a restarted run executes the script from its beginning. Calls of `fit` that had ended are skipped, and the
  interrupted call continues (`resumption`). Its data come to the saved position by repetition: `data_hooks` skips
  epochs and steps of Keras' data source; `source_data` knows which sources have a position.
- `script_file` recognizes the script, so that a state is not restored into another one.

Elastic runs (MATEX_ELASTIC). `elastic` repeats the work in which a rank was lost, with the ranks that remain, the
*survivors*. `elastic_step` undoes a training step: it restores the variables to their values before the step. `replay`
lets a step that takes batches inside its function take the same batches again.
"""
