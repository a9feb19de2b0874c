"""The import-time patches, one file for each thing patched.

Each file has `HOOKS`, the table of what it replaces, and `install()` where there is more to do. The order counts: a
patch may wrap what another has put in place.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from matex_tf.runtime import seeding
from matex_tf.runtime.hooks import Hook
from matex_tf.servers.pieces import owners, slots, update_costs

_IN_ORDER = """
    hooks.eager_code hooks.functions hooks.datasets hooks.keras_data hooks.py_datasets hooks.models
    hooks.callbacks hooks.sessions patches.imports patches.tf.control_flow patches.tf.xla patches.tf.strategy
    patches.tf.errors files.saving files.downloads files.python files.libraries
    files.tensorflow files.commands
""".split()
_ON_REQUEST = [
    "observe.check_recorder",
    "monitor.trial_hooks",
    "resilience.fit_hooks",
    "resilience.data_hooks",
    "apart.keras_fit",
    "servers.pieces.slots",
]
"""Installed by others: under `matex run --check`, in a trial of `matex tune`, where the
state of the run is kept, where ranks train apart, where they update pieces."""


def _load_part(name: str) -> Any:
    return importlib.import_module(f"matex_tf.{name}")


def install() -> None:
    """Install every patch of the runtime. Communicates only about what needs no TensorFlow."""
    for part in map(_load_part, _IN_ORDER):
        part.install() if hasattr(part, "install") else part.HOOKS.install()
    if owners.is_chosen() or update_costs.are_noted():
        slots.start_pieces()
        update_costs.start_noting()


def list_hooks() -> Iterator[tuple[str, Hook]]:
    """Everything that is replaced anywhere, with the file that does."""
    names = [*_IN_ORDER, *_ON_REQUEST]
    parts = {"runtime.seeding": seeding, **{name: _load_part(name) for name in names}}
    for name, part in parts.items():
        for hook in getattr(part, "HOOKS", ()):
            yield name, hook
