"""The compiled ops: `matex build`, and their description in `matex info`.

Two libraries are built: the engine, for one version of MPI, and the ops, for one version of TensorFlow.
`matex_tf.ops.build` makes a plan for each, and finds a library that was built before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from matex_tf import errors
from matex_tf.ops import build, cache, compiler


def describe_build() -> dict[str, Any]:
    """The state of the compiled ops, by the labels "MPI", "TensorFlow", "built" and "XLA kernels".

    "compiler" is added if a run would build the ops, and "for all users" if the shared folder has them for other
    versions only.

    Raises:
        BuildError: a run could not build, store or load the ops.
    """
    engine_plan = build.make_engine_plan()
    ops_plan = build.make_plan(engine_plan)
    state = {"MPI": compiler.shorten_version(ops_plan.mpi), "TensorFlow": ops_plan.tensorflow}
    libraries = [build.find_library(build_plan) for build_plan in (engine_plan, ops_plan)]
    if None in libraries:  # None: this library has not been built yet
        # A BuildError within the context begins with the sentence `other_builds`: which versions the shared folder has.
        with build.find_others(engine_plan if libraries[0] is None else ops_plan) as other_builds:
            cache.find_cache_folder()
            state["compiler"] = build.try_compiler().path
        state["built"] = "no (at first use, or now by `matex build`)"
        state |= {"for all users": other_builds} if other_builds else {}
    else:
        state["built"] = f"yes, {libraries[-1]}"
    return state | {"XLA kernels": _describe_xla()}


def _describe_xla() -> str:
    """The state of the XLA kernels. A failure to build them is no error."""
    try:
        if build.find_library(build.make_xla_plan()) is not None:
            return "built"
        build.try_compiler()
    except errors.BuildError as error:
        return f"none: steps with jit_compile=True run without XLA ({str(error).splitlines()[0]})"
    return "not built (at first use, or now by `matex build --xla`)"


@click.command("build", short_help="Compile the ops now.")
@click.option("--xla", is_flag=True, help="Compile the kernels for jit_compile=True, too.")
@click.option(
    "--into", is_flag=False, flag_value="", metavar="[FOLDER]",
    help="Build for all users into FOLDER, which a run finds by MATEX_OPS_DIR. Without FOLDER: into matex_tf.libs "
    "next to the installed package, which every run finds.",
)  # fmt: skip
def build_ops(xla: bool, into: str | None) -> int:
    """Compile the ops now rather than at first use, and print their path."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's C++ log messages do not concern the build
    try:
        folder = None
        if into is not None:
            folder = Path(into).expanduser().absolute() if into else cache.name_usual_folder()
            cache.make_shared_folder(folder)
        print((build.build_xla if xla else build.build_ops)(verbose=True, into=folder))
        if folder not in (None, cache.name_usual_folder()):
            cache.print_message(f"a run finds these ops by MATEX_OPS_DIR={folder}")
    except (ImportError, OSError, RuntimeError) as error:
        print(f"matex build: {error}", file=sys.stderr)
        return 1
    return 0
