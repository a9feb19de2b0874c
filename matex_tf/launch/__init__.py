"""The `matex` command. It never joins MPI. The package is callable: `matex_tf.launch(...)` starts a run from Python."""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.deploy.python", "launch")
