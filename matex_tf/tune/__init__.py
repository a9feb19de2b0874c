"""`matex tune`: the hyperparameters of an unchanged script, searched by trials that are runs of `matex run`.

Called, it is `matex_tf.tune.python.tune`.
"""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.tune.python", "tune")
