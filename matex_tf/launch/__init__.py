"""The `matex` command. It never joins MPI. The package is callable: `matex_tf.launch(...)` starts a run from Python.

`cli` has `matex run`, which acts in this order:

1. `run_options` separates the options of `matex run` from those of mpirun and from the script: a `Run`.
2. `command_line` finds mpirun (`probe`) and makes its command line of a `Run` (`mpirun_command`).
3. `process` starts mpirun, passes signals on to it (`signal_origin`) and waits. Meanwhile `output_file` writes the
   output of the ranks, `rank_ends` watches their processes, and `monitoring.live` displays them.
4. `run_end` tells how the run has ended.
5. `restarts`, with --restarts, repeats steps 2 to 4, and `hosts` chooses the hosts of each attempt.

The other commands: `planning` (`matex plan`), `simulate`, `info`, `built_ops` (`matex build`) and `monitoring`
(`matex top`, `matex report`). `check_run` is `matex run --check`.

Terms of this package:

- attempt: one start of mpirun.
- proof folder: a private folder of an attempt. In it each rank leaves a record (`runtime.rank_records`) of how far it
  came and how it ended, because mpirun's exit code is not enough.
- offer, change: with --adapt=ranks, what the launcher tells the ranks that they may change (hosts, number of ranks,
  strategy), and what they ask for before they leave (`adapt.offers`).
- host file: the user's list of hosts, which may change during a run. A slot of a host is a place for one rank.
"""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.deploy.python", "launch")
