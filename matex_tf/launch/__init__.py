"""The command line, and what starts ranks. Nothing here joins MPI. Called, it is `matex_tf.deploy.python.launch`."""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.deploy.python", "launch")
