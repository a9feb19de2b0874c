"""Proposes configurations by Optuna's tree-structured Parzen estimator.

Optuna keeps its trials in memory only: the search records them in its own database, and tells them again when resumed.
"""

from __future__ import annotations

import warnings

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from matex_tf.tune.space import Choice, Config, Parameter, Space, Value, make_key


class Tpe:
    """See `engine.Engine`."""

    slow = False

    def __init__(self, space: Space, seed: int):
        self._space = space
        self._distributions = {parameter.name: _make_distribution(parameter) for parameter in space.parameters}
        # Proposals without a cost, by `make_key` of the configuration: Optuna may propose a configuration repeatedly.
        self._open_trials: dict[str, list[optuna.trial.Trial]] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that such options are experimental
            # With `group`, parameters are modelled together only if they are active in the same trials (conditions).
            # With `constant_liar`, proposals avoid the neighbourhood of trials that still run.
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> Config:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask()
            config: Config = {}
            for parameter in self._space.parameters:
                if self._space.is_active(parameter, config):
                    config[parameter.name] = _suggest_value(trial, parameter)
        self._open_trials.setdefault(make_key(config), []).append(trial)
        return config

    def tell(self, config: Config, cost: float) -> None:
        trials = self._open_trials.pop(make_key(config), [])
        for trial in trials:
            self._study.tell(trial, cost)
        if not trials:  # Optuna has not proposed it, as a warm start, or was already told its cost after fewer epochs
            distributions = {name: self._distributions[name] for name in config}
            trial = optuna.trial.create_trial(params=dict(config), distributions=distributions, value=cost)
            self._study.add_trial(trial)


def _suggest_value(trial: optuna.trial.Trial, parameter: Parameter) -> Value:
    """A suggested value in the form that trials receive: plain numbers, rounded."""
    if isinstance(parameter, Choice):
        return str(trial.suggest_categorical(parameter.name, parameter.choices))
    if parameter.whole:
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high), log=parameter.log)
    return parameter.round_value(trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log))


def _make_distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Choice):
        return CategoricalDistribution(parameter.choices)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


make = Tpe  # the name that `engine.load_engine` looks up
