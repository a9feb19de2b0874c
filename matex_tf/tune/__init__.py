"""`matex tune`: searches the hyperparameters of an unchanged script; each trial is a run of `matex run`.

The module is callable: `matex_tf.tune(...)` is `matex_tf.tune.python.tune`. A search acts in this order:

1. `command` or `python` reads the request: the options (`settings`) and the space file (`space_file`).
2. `setup` creates the search in its folder and in the database (`database`), or opens one to resume it.
3. `search.SearchLoop` starts a trial in each free slot (`starter`), polls the trials (`trials`), records how they end,
   and shows them (`screen`).
4. `engines` proposes the configuration of the next trial, and is told the cost of each.
5. `setup` returns the result. `report` makes a page of it.

Terms of this package:

- configuration: a value for each parameter of the `space`, which the trial gets by options, variables or files.
- objective: the value to minimize or maximize, such as val_loss. The cost is the objective, negated to be minimized.
- engine: a search method, such as random search.
- slot: the resources of one of the concurrent trials: cores and GPUs, or hosts.
- place: the folder in which a trial runs, a mirror of the user's folder (small files are copies, large ones links).
- rung: a number of epochs after which trials pause. The best third is promoted: it continues.
- task: what a search trains: the sizes of its data and its model, and the name of its loss.
- warm start: a configuration that was the best one of an earlier search with a similar task.
"""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.tune.python", "tune")
