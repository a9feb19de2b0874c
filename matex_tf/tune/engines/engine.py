"""The interface of engines, and their names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from matex_tf.tune.space import Config, Space


class Engine(Protocol):
    """Proposes configurations that minimize the cost: the objective, negated if it is to be maximized."""

    slow: bool  # whether proposals take long, so that they are computed ahead

    def ask(self) -> Config:
        """A configuration to try. Earlier proposals without a cost yet are taken into account."""

    def tell(self, config: Config, cost: float) -> None:
        """Report the cost of `config`, which may have been proposed never, once, or several times."""


NAMES = {"random": "random_search", "smac": "smac_forest", "tpe": "optuna_tpe"}
"""The module of each engine; its `make(space, seed)` creates the engine. Seeds are from 0 to 2**32 - 1."""
_PACKAGES = {"smac": "SMAC3", "tpe": "Optuna"}


class EngineMissingError(ImportError):
    """The library of an engine is not installed; the text says how to install it."""


def load_engine(name: str) -> Callable[[Space, int], Engine]:
    """The function that creates an engine from a space and a seed. Raises EngineMissingError without its library."""
    try:
        module = importlib.import_module(f"matex_tf.tune.engines.{NAMES[name]}")
    except ImportError as error:
        raise EngineMissingError(
            f"--engine {name} needs {_PACKAGES[name]}, which cannot be loaded here ({error}): "
            "pip install 'matex_tf[tune]'. --engine random needs no library"
        ) from None
    make: Callable[[Space, int], Engine] = module.make
    return make
