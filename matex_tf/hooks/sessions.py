"""Sessions of `tf.compat.v1`: their runs are steps, and what is saved of a graph has the script's ops alone."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.replace import replace_function
from matex_tf.steps import session_graphs, session_runs


def install() -> None:
    from tensorflow.python.client import session
    from tensorflow.python.framework import ops

    replace_function(session.BaseSession, "_do_run", _wrap_do_run)
    replace_function(ops.Graph, "_as_graph_def", _wrap_as_graph_def)


def _wrap_do_run(original: Any) -> Any:
    def _do_run(
        self: Any, handle: Any, target_list: Any, fetch_list: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        def run(operations: Any, tensors: Any) -> Any:
            return original(self, handle, operations, tensors, feed_dict, options, run_metadata)

        if handle is not None:  # a part of a run
            return run(target_list, fetch_list)
        return session_runs.run_session(self, target_list, fetch_list, feed_dict, run)

    return _do_run


def _wrap_as_graph_def(original: Any) -> Any:
    def _as_graph_def(self: Any, *args: Any, **kwargs: Any) -> Any:
        definition, version = original(self, *args, **kwargs)
        return session_graphs.drop_copies(self, definition), version

    return _as_graph_def
