"""Hooks for both Keras 3 and Keras 2, which is also installed as `tf_keras`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.runtime.hooks import Make, Table


class KerasTable(Table):
    """Declares hooks for both versions of Keras in one line."""

    def replace_in(
        self, if_missing: str, keras3: str = "", keras2: str = "", since: str = "3", **options: Any
    ) -> Callable[[Make], Make]:
        """`Table.replace` for both versions of Keras.

        Args:
            keras3, keras2: the place of the original below `keras.src`, as "MODULE:NAMES"; "" if there is none.
            since: the first version of Keras 3 with this hook.
            if_missing, options: see `Table.replace`.
        """

        def declare(make: Make) -> Make:
            for place, packages, versions in (
                (keras3, ("keras",), {"since": since}),
                (keras2, ("keras", "tf_keras"), {"until": "3"}),
            ):
                module, _, names = place.partition(":")
                modules = " ".join(f"{package}.src.{module}" for package in packages)
                if names:
                    self.replace(modules, names, if_missing, early=True, **versions, **options)(make)
            return make

        return declare
