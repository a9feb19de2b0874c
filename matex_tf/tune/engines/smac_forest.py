"""Proposes configurations by SMAC3's random forest with expected improvement, as the paper XAI (section 4.1) does.

The search calls `ask` and `tell` and starts the trials itself. SMAC's own runner is not used: it pickles functions into
daemons, and trials are commands.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ConfigSpace import AndConjunction, Categorical, Configuration, ConfigurationSpace, Float, InCondition, Integer
from smac import HyperparameterOptimizationFacade as Facade
from smac import Scenario
from smac.runhistory import TrialInfo, TrialValue

from matex_tf.tune.space import Choice, Config, Parameter, Space, make_key

_FIRST_FOR_EACH = 2
"""For each parameter, the number of first configurations, which fill the space evenly before the forest is used."""
_MAX_TRIALS = 1_000_000  # SMAC requires a limit


class Smac:
    """See `engine.Engine`."""

    slow = True

    def __init__(self, space: Space, seed: int):
        self._space, self._seed = space, seed
        self._config_space = _make_space(space, seed)
        # Proposals without a cost, by `make_key` of the configuration: SMAC may propose a configuration repeatedly.
        self._open_trials: dict[str, list[TrialInfo]] = {}
        # SMAC always writes files. The folder is removed with this object.
        self._folder = tempfile.TemporaryDirectory(prefix="matex-tune-smac-")
        with _quiet():
            folder = Path(self._folder.name)
            scenario = Scenario(
                self._config_space, n_trials=_MAX_TRIALS, deterministic=True, seed=seed, output_directory=folder
            )
            initial_design = Facade.get_initial_design(
                scenario, n_configs=_FIRST_FOR_EACH * len(space.parameters), max_ratio=1
            )
            # By default SMAC proposes eight configurations before it retrains the forest.
            selector = Facade.get_config_selector(scenario, retrain_after=1)
            # The lambda stands for the function to minimize. It is never called: costs come by `tell`.
            self._facade = Facade(
                scenario, lambda config, seed=0: 0.0, initial_design=initial_design, config_selector=selector,
                overwrite=True, logging_level=False,
            )  # fmt: skip

    def ask(self) -> Config:
        with _quiet():
            trial_info = self._facade.ask()
        config = self._read_config(dict(trial_info.config))
        self._open_trials.setdefault(make_key(config), []).append(trial_info)
        return config

    def tell(self, config: Config, cost: float) -> None:
        # A configuration gets a new `TrialInfo` if SMAC has not proposed it (such as a warm start), or already has its
        # cost after fewer epochs.
        trial_infos = self._open_trials.pop(make_key(config), [])
        for trial_info in trial_infos or [TrialInfo(Configuration(self._config_space, values=dict(config)), seed=0)]:
            with _quiet():
                self._facade.tell(trial_info, TrialValue(cost=cost), save=False)

    def _read_config(self, values: dict[str, Any]) -> Config:
        """Values in the form that trials receive: plain numbers, rounded."""
        config: Config = {}
        for parameter in self._space.parameters:
            if (name := parameter.name) in values:
                value = values[name]
                config[name] = str(value) if isinstance(parameter, Choice) else parameter.round_value(float(value))
        return config


def _make_space(space: Space, seed: int) -> ConfigurationSpace:
    config_space = ConfigurationSpace(seed=seed)
    hyperparameters = {parameter.name: _make_parameter(parameter) for parameter in space.parameters}
    config_space.add(list(hyperparameters.values()))
    for parameter in space.parameters:
        conditions = [
            InCondition(hyperparameters[parameter.name], hyperparameters[other_name], list(values))
            for other_name, values in parameter.when
        ]
        if conditions:
            config_space.add(conditions[0] if len(conditions) == 1 else AndConjunction(*conditions))
    return config_space


def _make_parameter(parameter: Parameter) -> Any:
    if isinstance(parameter, Choice):
        return Categorical(parameter.name, list(parameter.choices))
    if parameter.whole:
        return Integer(parameter.name, (int(parameter.low), int(parameter.high)), log=parameter.log)
    return Float(parameter.name, (parameter.low, parameter.high), log=parameter.log)


class _quiet(warnings.catch_warnings):
    """Context without logs of SMAC and without warnings of dask and scikit-learn."""

    def __enter__(self) -> Any:
        result = super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("smac").setLevel(logging.CRITICAL)
        return result


make = Smac  # the name that `engine.load_engine` looks up
