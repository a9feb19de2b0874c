"""Installs the patches of TensorFlow, Keras and Python when `matex_tf` is imported.

A module has `HOOKS`, the table of its hooks, and `install()` if it does more. The order matters: a hook may wrap the
function that an earlier hook has installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from matex_tf.runtime import seeding
from matex_tf.runtime.hooks import Hook
from matex_tf.servers.pieces import owners, slots, update_costs

_ALWAYS = """
    hooks.eager_code hooks.functions hooks.datasets hooks.keras_data hooks.py_datasets hooks.callbacks hooks.sessions
    patches.imports patches.tensorflow
    files.saving files.downloads files.python files.libraries files.tensorflow files.commands files.standard_input
    files.children
""".split()
_ON_REQUEST = """
    observe.check_recorder monitor.trial_hooks resilience.fit_hooks resilience.data_hooks apart.keras_fit
    servers.pieces.slots
""".split()
"""Installed by other modules, if the run needs them."""


def _load(name: str) -> Any:
    return importlib.import_module(f"matex_tf.{name}")


def install() -> None:
    """Install all patches."""
    for module in map(_load, _ALWAYS):
        module.install() if hasattr(module, "install") else module.HOOKS.install()
    # Slots are an optimizer's variables; owners are the ranks that hold and update them in pieces.
    if owners.is_chosen() or update_costs.are_noted():
        slots.start_pieces()
        update_costs.start_noting()


def list_hooks() -> Iterator[tuple[str, Hook]]:
    """All hooks, each with the name of its module."""
    modules = {"runtime.seeding": seeding, **{name: _load(name) for name in (*_ALWAYS, *_ON_REQUEST)}}
    for name, module in modules.items():
        for hook in getattr(module, "HOOKS", ()):
            yield name, hook
