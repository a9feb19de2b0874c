"""Optuna's tree-structured Parzen estimator, in memory: results are stored in our own database."""

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
        self._known = {one.name: _make_distribution(one) for one in space.parameters}
        self._asked: dict[str, list[optuna.trial.Trial]] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that groups, which conditions need, are experimental
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> Config:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask()
            config: Config = {}
            for one in self._space.parameters:
                if self._space.is_active(one, config):
                    config[one.name] = _suggest_value(trial, one)
        self._asked.setdefault(make_key(config), []).append(trial)
        return config

    def tell(self, config: Config, cost: float) -> None:
        trials = self._asked.pop(make_key(config), [])
        for trial in trials:
            self._study.tell(trial, cost)
        if not trials:
            known = {name: self._known[name] for name in config}
            self._study.add_trial(optuna.trial.create_trial(params=dict(config), distributions=known, value=cost))


def _suggest_value(trial: optuna.trial.Trial, one: Parameter) -> Value:
    """A suggested value in the form that trials receive: plain numbers, rounded."""
    if isinstance(one, Choice):
        return str(trial.suggest_categorical(one.name, one.choices))
    if one.whole:
        return trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
    return one.round_value(trial.suggest_float(one.name, one.low, one.high, log=one.log))


def _make_distribution(one: Parameter) -> BaseDistribution:
    if isinstance(one, Choice):
        return CategoricalDistribution(one.choices)
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)


make = Tpe
