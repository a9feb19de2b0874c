"""`matex tune`: searches the hyperparameters of an unchanged script; each trial is a run of `matex run`.

The module is callable: `matex_tf.tune(...)` is `matex_tf.tune.python.tune`.
"""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.tune.python", "tune")
