"""`tf`, which imports TensorFlow at its first use, for modules that are imported before the script imports it."""

from __future__ import annotations

from typing import Any


class _TensorFlow:
    """Reads attributes of TensorFlow."""

    def __getattr__(self, name: str) -> Any:
        import tensorflow

        return getattr(tensorflow, name)


tf: Any = _TensorFlow()
