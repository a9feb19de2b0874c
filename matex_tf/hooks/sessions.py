"""Sessions of `tf.compat.v1`: ranks share runs (`session_runs`), and a saved graph has the script's ops only.

TensorFlow's `Session.run` converts fetches and feeds, and calls `_do_run` with ops, tensors and arrays. If ranks
share the run, the hook of `_do_run` fetches ops and tensors of a copy instead, which computes this rank's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from matex_tf.runtime.hooks import Table
from matex_tf.sharding import shard_arrays
from matex_tf.steps import gradients, session_graphs, session_runs

HOOKS = Table()

_SESSION = "tensorflow.python.client.session"
_IF_HOOK_MISSING = "each rank computes all of each run of a session"


@HOOKS.replace(_SESSION, "BaseSession.run", _IF_HOOK_MISSING)
def _wrap_run(original: Any) -> Any:
    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        # Look for shards here: before `_do_run`, TensorFlow converts the arrays to plain ones.
        fed_arrays = feed_dict.values() if isinstance(feed_dict, Mapping) else ()
        has_shards = any(isinstance(array, np.ndarray) and shard_arrays.is_shard(array) for array in fed_arrays)
        with session_runs.feeds_shares.set(has_shards):
            return original(self, fetches, feed_dict, options, run_metadata)

    return run


@HOOKS.replace(_SESSION, "BaseSession._do_run", _IF_HOOK_MISSING)
def _wrap_do_run(original: Any) -> Any:
    def _do_run(self, handle, target_list, fetch_list, feed_dict, options, run_metadata):
        # Runs ops and tensors of the session's graph, the script's or a copy's, with TensorFlow's own `_do_run`.
        def run(operations, tensors, further_feeds=MappingProxyType({})):
            feeds = {**feed_dict, **{tensor.ref(): value for tensor, value in further_feeds.items()}}
            return original(self, handle, operations, tensors, feeds, options, run_metadata)

        if handle is not None:  # a part of a `partial_run`: ranks share whole runs only
            return run(target_list, fetch_list)
        return session_runs.run_session(self, target_list, fetch_list, feed_dict, run)

    return _do_run


@HOOKS.replace("tensorflow.python.ops.gradients_util", "_GradientsHelper", "no run of a session counts as an update")
def _wrap_gradients(original: Any) -> Any:
    """Label the gradients of a v1 graph: a run of a session that computes some counts as an update."""

    def _GradientsHelper(ys, xs, *args, **kwargs):
        computed_gradients = original(ys, xs, *args, **kwargs)
        gradients.note_gradients(computed_gradients, xs)
        return computed_gradients

    return _GradientsHelper


@HOOKS.replace("tensorflow.python.framework.ops", "Graph._as_graph_def", "what is saved of a graph has ops of matex_tf")
def _wrap_as_graph_def(original: Any) -> Any:
    def _as_graph_def(self, *args, **kwargs):
        definition, version = original(self, *args, **kwargs)
        return session_graphs.drop_copies(self, definition), version

    return _as_graph_def
