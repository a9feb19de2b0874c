"""Removes matex_tf's frames from AutoGraph's error text "in user code", so that it shows frames of the script only."""

from __future__ import annotations

import os
from typing import Any

from matex_tf import ops, settings
from matex_tf.runtime.hooks import Table

HOOKS = Table()

_OWN_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(str(module.__file__))), "") for module in (settings, ops)
)


@HOOKS.replace(
    "tensorflow.python.autograph.pyct.error_utils",
    "ErrorMetadataBase.__init__",
    "errors in a tf.function show frames of matex_tf",
    optional=True,
)
def _drop_our_frames(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if settings.get_settings().traceback == "script":
            shown = (frame for frame in self.translated_stack if not frame.filename.startswith(_OWN_FOLDERS))
            self.translated_stack = tuple(shown)

    return __init__
