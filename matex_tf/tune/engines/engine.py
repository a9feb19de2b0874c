"""What the search wants of an engine, and which there are."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from matex_tf.tune.space import Config, Space


class Engine(Protocol):
    """Proposes configurations. Costs are to be made small."""

    slow: bool
    """Whether it thinks for long, so that it is to be asked ahead of the need."""

    def ask(self) -> Config:
        """A configuration to try; those that were asked for and are not told yet are known to it."""

    def tell(self, config: Config, cost: float) -> None:
        """What `config` has cost, whether it was asked for, once or more often, or comes from elsewhere."""


NAMES = {"random": "random_search", "smac": "smac_forest", "tpe": "optuna_tpe"}
_PACKAGES = {"smac": "SMAC3", "tpe": "Optuna"}


class EngineMissingError(ImportError):
    """The library of an engine is not there; the text says how to get it."""


def check_engine(name: str) -> None:
    """Raises EngineMissingError where the library of the engine of this name cannot be loaded."""
    _load_engine(name)


def make_engine(name: str, space: Space, seed: int) -> Engine:
    """The engine of this name. Raises EngineMissingError."""
    engine: Engine = _load_engine(name).make(space, seed)
    return engine


def _load_engine(name: str) -> Any:
    try:
        return importlib.import_module(f"matex_tf.tune.engines.{NAMES[name]}")
    except ImportError as error:
        raise EngineMissingError(
            f"--engine {name} needs {_PACKAGES[name]}, which cannot be loaded here ({error}): "
            "pip install 'matex_tf[tune]'. --engine random needs nothing"
        ) from None
