"""SMAC3's random forest with expected improvement, as in XAI (section 4.1), with `ask` and `tell`.

SMAC's own runner is not used: it pickles functions into daemons, and trials are commands.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ConfigSpace import (
    AndConjunction,
    Categorical,
    Configuration,
    ConfigurationSpace,
    Float,
    InCondition,
    Integer,
)
from smac import HyperparameterOptimizationFacade as Facade
from smac import Scenario
from smac.runhistory import TrialInfo, TrialValue

from matex_tf.tune.space import Choice, Config, Parameter, Space, make_key

_FIRST_FOR_EACH = 2
"""Number of initial configurations of a space-filling design, for each parameter."""
_MOST = 1_000_000


class Smac:
    """See `engine.Engine`."""

    slow = True

    def __init__(self, space: Space, seed: int):
        self._space, self._seed = space, seed
        self._known = _make_space(space, seed)
        self._asked: dict[str, list[TrialInfo]] = {}
        # SMAC writes files in any case.
        self._folder = tempfile.TemporaryDirectory(prefix="matex-tune-smac-")
        with _quiet():
            scenario = Scenario(
                self._known, n_trials=_MOST, deterministic=True, seed=seed, output_directory=Path(self._folder.name)
            )
            first = Facade.get_initial_design(scenario, n_configs=_FIRST_FOR_EACH * len(space.parameters), max_ratio=1)
            # By default SMAC proposes eight configurations before it retrains the forest.
            selector = Facade.get_config_selector(scenario, retrain_after=1)
            self._facade = Facade(
                scenario, lambda config, seed=0: 0.0, initial_design=first, config_selector=selector, overwrite=True,
                logging_level=False,
            )  # fmt: skip

    def ask(self) -> Config:
        with _quiet():
            info = self._facade.ask()
        config = self._read_config(dict(info.config))
        self._asked.setdefault(make_key(config), []).append(info)
        return config

    def tell(self, config: Config, cost: float) -> None:
        infos = self._asked.pop(make_key(config), [])
        for info in infos or [TrialInfo(Configuration(self._known, values=dict(config)), seed=0)]:
            with _quiet():
                self._facade.tell(info, TrialValue(cost=cost), save=False)

    def _read_config(self, values: dict[str, Any]) -> Config:
        """Values in the form that trials receive: plain numbers, rounded."""
        config: Config = {}
        for one in self._space.parameters:
            if one.name in values:
                value = values[one.name]
                config[one.name] = str(value) if isinstance(one, Choice) else one.round_value(float(value))
        return config


def _make_space(space: Space, seed: int) -> ConfigurationSpace:
    known = ConfigurationSpace(seed=seed)
    made = {one.name: _make_parameter(one) for one in space.parameters}
    known.add(list(made.values()))
    for one in space.parameters:
        conditions = [InCondition(made[one.name], made[on], list(values)) for on, values in one.when]
        if conditions:
            known.add(conditions[0] if len(conditions) == 1 else AndConjunction(*conditions))
    return known


def _make_parameter(one: Parameter) -> Any:
    if isinstance(one, Choice):
        return Categorical(one.name, list(one.choices))
    if one.whole:
        return Integer(one.name, (int(one.low), int(one.high)), log=one.log)
    return Float(one.name, (one.low, one.high), log=one.log)


class _quiet(warnings.catch_warnings):
    """Suppresses logs of SMAC, and warnings of dask and scikit-learn."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("smac").setLevel(logging.CRITICAL)
        return found


make = Smac
