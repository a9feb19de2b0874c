"""The search space: parameters, ranges and conditions. Pure functions, independent of how a script receives values.

A parameter with a condition (`when`) is active only if the condition holds. A configuration (`Config`) has a value for
each active parameter. For example, --momentum with the condition optimizer: [sgd] has no value if optimizer is adam.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

Value = float | int | str
Config = dict[str, Value]
Condition = tuple[tuple[str, tuple[str, ...]], ...]
"""Other parameters and their allowed values, such as (("optimizer", ("sgd", "adam")),). All must hold; (): always."""

ON, OFF = "on", "off"  # the values of a flag: present on the command line, or absent
_DIGITS = 4  # decimal digits of a value, relative to the range
_MOST_LISTED = 10_000  # the most values of a parameter, or configurations, that are listed


@dataclass(frozen=True)
class Number:
    """A float, or with `whole` an integer, from `low` to `high`; with `log`, uniform in its logarithm."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    when: Condition = ()
    otherwise: str | None = None
    """The text in place of `{{name}}` in files while the parameter is not active; None: it needs none."""

    def compute_value(self, share: float) -> Value:
        """The value at the fraction `share` (0 to 1) of the range, rounded, so that trials get the displayed value."""
        # Widen a range of integers by 0.5 on each side. Otherwise the first and the last integer would be half as
        # likely as the others, because the numbers of only one side round to them.
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return self.round_value(value)

    def round_value(self, value: float) -> Value:
        """Round `value` as trials receive it, within the range; the resolution is about 1/10000 of the range."""
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        if self.log:  # significant digits: more of them if the range is narrow
            digits = _DIGITS + max(0, -_find_power(math.log(self.high / self.low)))
            rounded = float(f"{value:.{digits}g}")
        else:
            rounded = round(value, _DIGITS - _find_power(self.high - self.low)) + 0.0  # never -0.0
        return min(max(rounded, self.low), self.high)

    def allows(self, value: Value | None) -> bool:
        """Whether the value is valid; None is not."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return (isinstance(value, int) or not self.whole) and self.low <= value <= self.high

    @property
    def values(self) -> list[Value] | None:
        """All values; None if there are too many to list."""
        if not self.whole or self.high - self.low >= _MOST_LISTED:
            return None
        return list(range(int(self.low), int(self.high) + 1))


@dataclass(frozen=True)
class Choice:
    """One of several texts, as in the file; for a flag, whether it is present."""

    name: str
    choices: tuple[str, ...]
    is_flag: bool = False
    when: Condition = ()
    otherwise: str | None = None

    def compute_value(self, share: float) -> Value:
        """The value at the fraction `share`, 0 to 1."""
        return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]

    def allows(self, value: Value | None) -> bool:
        """Whether the value is valid; None is not."""
        return value in self.choices

    @property
    def values(self) -> list[Value] | None:
        """All values."""
        return list(self.choices)


Parameter = Number | Choice


def _find_power(value: float) -> int:
    """The exponent of ten of the first digit: 2 for 345, -2 for 0.03."""
    return math.floor(math.log10(value))


@dataclass(frozen=True)
class Space:
    """The parameters, each after those that its condition names."""

    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    def format_values(self, config: Config) -> list[str]:
        """The value of each parameter as text; "" for inactive parameters."""
        return [format_value(config[name]) if name in config else "" for name in self.names]

    def is_active(self, parameter: Parameter, config: Config) -> bool:
        """Whether `parameter` is active, given the values in `config` of the parameters before it."""
        return all(config.get(name) in allowed_values for name, allowed_values in parameter.when)

    def sample_config(self, draw: random.Random) -> Config:
        """A configuration with each parameter drawn uniformly."""
        config: Config = {}
        for parameter in self.parameters:
            # Draw also for an inactive parameter: otherwise a condition would change the values of later parameters.
            share = draw.random()
            if self.is_active(parameter, config):
                config[parameter.name] = parameter.compute_value(share)
        return config

    def allows(self, config: Config) -> bool:
        """Whether `config` has a valid value for each active parameter, and no others."""
        valid_config: Config = {}
        for parameter in self.parameters:
            if self.is_active(parameter, valid_config):
                if not parameter.allows(config.get(parameter.name)):
                    return False
                valid_config[parameter.name] = config[parameter.name]
        return valid_config.keys() == config.keys()

    @cached_property
    def all(self) -> list[Config] | None:
        """Every configuration; None if there are too many to list."""
        if any(parameter.values is None for parameter in self.parameters):
            return None
        configs = list(itertools.islice(self._list_configs(self.parameters, {}), _MOST_LISTED + 1))
        return configs if len(configs) <= _MOST_LISTED else None

    def _list_configs(self, parameters: tuple[Parameter, ...], config: Config) -> Iterator[Config]:
        """All configurations that extend `config`, which has values of the earlier parameters, by `parameters`."""
        if not parameters:
            yield config
            return
        first_parameter, *other_parameters = parameters
        if self.is_active(first_parameter, config):
            for value in first_parameter.values or ():
                yield from self._list_configs(tuple(other_parameters), {**config, first_parameter.name: value})
        else:
            yield from self._list_configs(tuple(other_parameters), config)


def make_key(config: Config) -> str:
    """A text that is the same for equal configurations, in order to look them up."""
    return json.dumps(config, sort_keys=True)


def format_value(value: Value) -> str:
    """A value as a script receives it, with enough digits to restore the number."""
    return repr(value) if isinstance(value, (float, int)) else value
