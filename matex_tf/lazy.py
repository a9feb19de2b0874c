"""TensorFlow by its usual name, for modules that are imported before a script has imported it."""

from __future__ import annotations

from typing import Any


class _TensorFlow:
    """Looks in TensorFlow, and imports it where nobody has yet."""

    def __getattr__(self, name: str) -> Any:
        import tensorflow

        return getattr(tensorflow, name)


tf: Any = _TensorFlow()
