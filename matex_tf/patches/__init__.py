"""The import-time patches, one file for each thing patched.

Each file has `HOOKS`, the table of what it replaces, and `install()` where there is more to do. The order counts: a
patch may wrap what another has put in place.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from matex_tf import settings
from matex_tf.runtime import seeding
from matex_tf.runtime.hooks import Hook
from matex_tf.servers.pieces import owners, slots, update_costs

_IN_ORDER = """
    imports tf.tape tf.function tf.function_loop tf.xla tf.control_flow tf.printing tf.dataset v1.session v1.iterators
    tf.strategy tf.errors keras.callbacks keras.calls keras.resume keras.data keras.losses keras.metrics
    keras.optimizers keras.predict keras.training keras.batch_normalization tf.random files.saving
    files.downloads files.python files.libraries files.tensorflow files.datasets files.commands
""".split()
_ON_REQUEST = ["files.journal", "tf.check_recorder", "keras.trial", "servers.pieces.slots"]
"""Patches that others install: where this rank is the first, under `matex run --check`, in a trial of `matex tune`."""


_WITH_PLANS = """
    hooks.eager_code hooks.functions hooks.iterators hooks.datasets hooks.keras_data hooks.models hooks.callbacks
    hooks.sessions imports tf.xla tf.strategy tf.errors files.saving files.downloads files.python files.libraries
    files.tensorflow files.datasets files.commands
""".split()
"""Those of the steps that are plans."""


def _load_part(name: str) -> Any:
    package = "matex_tf" if name.startswith(("hooks.", "servers.")) else __name__
    return importlib.import_module(f"{package}.{name}")


def install() -> None:
    """Install every patch of the runtime. Communicates only about what needs no TensorFlow."""
    plans = settings.get_settings().steps == "plans"
    for part in map(_load_part, _WITH_PLANS if plans else _IN_ORDER):
        part.install() if hasattr(part, "install") else part.HOOKS.install()
    if owners.is_chosen() or update_costs.are_noted():
        slots.start_pieces()
        update_costs.start_noting()


def list_hooks() -> Iterator[tuple[str, Hook]]:
    """Everything that is replaced anywhere, with the file that does."""
    names = dict.fromkeys([*_IN_ORDER, *_WITH_PLANS, *_ON_REQUEST])
    parts = {"runtime.seeding": seeding, **{name: _load_part(name) for name in names}}
    for name, part in parts.items():
        for hook in getattr(part, "HOOKS", ()):
            yield name, hook
