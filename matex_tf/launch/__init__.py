"""The `matex` command line and the start of ranks. The package is callable: `matex_tf.launch(...)` starts a run from
Python. Nothing here joins MPI.
"""

from matex_tf.callable_package import make_callable

make_callable(__name__, "matex_tf.deploy.python", "launch")
