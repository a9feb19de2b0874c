"""What is searched: parameters, their ranges and conditions. Pure functions; nothing here knows how a script is told.

A configuration has a value for each parameter that is active: one whose condition does not hold has none.
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
"""Parameters that it hangs on, and which of their values it needs: all of them together."""

ON, OFF = "on", "off"
"""The values of a flag: it is on the command line, or it is not."""
_DIGITS = 4
_MOST_LISTED = 10_000


@dataclass(frozen=True)
class Number:
    """A float, or a whole number, from `low` to `high`; `log` draws it evenly by its logarithm."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    when: Condition = ()

    def compute_value(self, share: float) -> Value:
        """The value at a place from 0 to 1: rounded, so that what is shown is what a trial was given."""
        half = 0.5 if self.whole else 0.0  # as many places for the first and the last as for each between
        low, high = self.low - half, self.high + half
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return self.round_value(value)

    def round_value(self, value: float) -> Value:
        """`value` as trials are given it, within the range: a ten-thousandth of that is told apart."""
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        if self.log:
            shown = float(f"{value:.{_DIGITS + max(0, -_find_power(math.log(self.high / self.low)))}g}")
        else:
            shown = round(value, _DIGITS - _find_power(self.high - self.low)) + 0.0  # never -0.0
        return min(max(shown, self.low), self.high)

    def allows(self, value: Value) -> bool:
        """Whether it may have this value."""
        right = isinstance(value, int) if self.whole else isinstance(value, (int, float))
        return right and not isinstance(value, bool) and self.low <= float(value) <= self.high

    @property
    def values(self) -> list[Value] | None:
        """All that it may be; None where they are too many to be listed."""
        if not self.whole or self.high - self.low >= _MOST_LISTED:
            return None
        return list(range(int(self.low), int(self.high) + 1))


@dataclass(frozen=True)
class Choice:
    """One of some texts, as they stand in the file; of a flag, whether it is there."""

    name: str
    choices: tuple[str, ...]
    is_flag: bool = False
    when: Condition = ()

    def compute_value(self, share: float) -> Value:
        """The value at a place from 0 to 1."""
        return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]

    def allows(self, value: Value) -> bool:
        """Whether it may have this value."""
        return value in self.choices

    @property
    def values(self) -> list[Value] | None:
        """All that it may be."""
        return list(self.choices)


Parameter = Number | Choice


def _find_power(value: float) -> int:
    """The power of ten of its first digit."""
    return math.floor(math.log10(value))


@dataclass(frozen=True)
class Space:
    """The parameters, each after those that its condition names."""

    parameters: tuple[Parameter, ...]

    def is_active(self, parameter: Parameter, config: Config) -> bool:
        """Whether `parameter` has a value beside those that `config` has of the parameters before it."""
        return all(config.get(name) in allowed for name, allowed in parameter.when)

    def sample_config(self, draw: random.Random) -> Config:
        """A configuration, each parameter drawn evenly."""
        config: Config = {}
        for parameter in self.parameters:
            place = draw.random()
            if self.is_active(parameter, config):
                config[parameter.name] = parameter.compute_value(place)
        return config

    def allows(self, config: Config) -> bool:
        """Whether `config` has a right value for each active parameter, and nothing else."""
        found: Config = {}
        for parameter in self.parameters:
            if self.is_active(parameter, found):
                if parameter.name not in config or not parameter.allows(config[parameter.name]):
                    return False
                found[parameter.name] = config[parameter.name]
        return found.keys() == config.keys()

    @cached_property
    def all(self) -> list[Config] | None:
        """Every configuration there is; None where they are too many to be listed."""
        if any(parameter.values is None for parameter in self.parameters):
            return None
        listed = list(itertools.islice(self._list_configs(0, {}), _MOST_LISTED + 1))
        return listed if len(listed) <= _MOST_LISTED else None

    def _list_configs(self, place: int, config: Config) -> Iterator[Config]:
        if place == len(self.parameters):
            yield dict(config)
            return
        parameter = self.parameters[place]
        if not self.is_active(parameter, config):
            yield from self._list_configs(place + 1, config)
            return
        for value in parameter.values or ():
            yield from self._list_configs(place + 1, {**config, parameter.name: value})


def make_key(config: Config) -> str:
    """What two configurations have in common that are the same."""
    return json.dumps(config, sort_keys=True)


def format_value(value: Value) -> str:
    """A value as a script is told it: digits that give the same number back."""
    return repr(value) if isinstance(value, (float, int)) else value
