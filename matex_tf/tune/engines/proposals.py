"""Proposals of an engine without duplicates, computed ahead if the engine is slow."""

from __future__ import annotations

import random
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from matex_tf.tune.engines.engine import Engine
from matex_tf.tune.space import Config, Space, make_key

ENGINE, WARM = "engine", "warm"  # origins of configurations: proposed by the engine, or the best of an earlier search
_TRIES = 20  # after this many proposals that are duplicates, a configuration is drawn at random


class ExhaustedError(RuntimeError):
    """Every configuration of the space was tried."""


class Proposals:
    """The proposals of `engine` that are not among `tried_configs`, which were tried before.

    A slow engine runs in its own thread, and computes the next proposal while trials run.
    """

    def __init__(self, engine: Engine, space: Space, seed: int, tried_configs: Iterable[Config] = ()):
        self._engine, self._space = engine, space
        self._draw = random.Random(seed)
        self._seen = {make_key(config) for config in tried_configs}
        self._costs: dict[str, float] = {}  # reported costs, by `make_key` of the configuration
        self._unreported: list[tuple[Config, float | None]] = []  # costs that the engine does not know yet
        self._last_costs: dict[str, float] = {}  # the last cost that each trial had, by `make_key`
        self._first_configs: list[Config] = []  # warm starts, proposed before those of the engine
        self._thread = ThreadPoolExecutor(1, "matex_tf tune") if engine.slow else None  # calls a slow engine
        self._next_config: Future[Config] | None = None  # the proposal that the thread computes
        self._reports: list[Future[None]] = []  # calls of `_tell_engine` whose exceptions are not raised yet

    def put_first(self, configs: Iterable[Config]) -> int:
        """Propose untried `configs` before those of the engine. Returns how many configurations wait to be proposed."""
        self._first_configs += [config for config in configs if make_key(config) not in self._seen]
        return len(self._first_configs)

    def take_next(self) -> tuple[Config, str] | None:
        """The next configuration and its origin; None while the engine is computing.

        Raises:
            ExhaustedError: all configurations were tried.
        """
        while self._first_configs:
            config = self._first_configs.pop(0)
            if make_key(config) not in self._seen:  # the engine may have proposed it meanwhile
                self._seen.add(make_key(config))
                return config, WARM
        if self._thread is None:
            return self._propose_config(), ENGINE
        while self._reports and self._reports[0].done():
            self._reports.pop(0).result()  # raises the exception of the call, if there was one
        if self._next_config is None:
            self._next_config = self._thread.submit(self._propose_config)
        if not self._next_config.done():
            return None
        config = self._next_config.result()
        self._next_config = self._thread.submit(self._propose_config)
        return config, ENGINE

    def tell(self, config: Config, cost: float | None) -> None:
        """Report the cost of a configuration; None: its trial has failed, and costs as much as the worst trial.

        So failed trials are reported once a trial has a cost. A configuration that the space no longer allows, because
        the user has changed it, is not reported.
        """
        if self._space.allows(config):
            self._unreported.append((config, cost))
        if cost is not None:
            self._last_costs[make_key(config)] = cost
        if not self._last_costs:
            return
        worst_cost = max(self._last_costs.values())
        for waiting_config, waiting_cost in self._unreported:
            known_cost = worst_cost if waiting_cost is None else waiting_cost
            if self._thread is None:
                self._tell_engine(waiting_config, known_cost)
            else:
                self._reports.append(self._thread.submit(self._tell_engine, waiting_config, known_cost))
        self._unreported = []

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _tell_engine(self, config: Config, cost: float) -> None:
        self._costs[make_key(config)] = cost
        self._engine.tell(config, cost)

    def _propose_config(self) -> Config:
        """An untried configuration of the engine; drawn at random if the engine repeats itself. It counts as tried."""
        all_configs = self._space.all  # None: too many to list
        # `_seen` may have further configurations: of a search whose choices have changed since.
        if all_configs is not None and all(make_key(config) in self._seen for config in all_configs):
            raise ExhaustedError
        for _ in range(_TRIES):
            config = self._engine.ask()
            if make_key(config) not in self._seen:
                break
            # The engine waits for the cost of a duplicate. Report a known cost; `tell` reports it later otherwise.
            if make_key(config) in self._costs:
                self._engine.tell(config, self._costs[make_key(config)])
        else:  # all proposals were duplicates
            untried_configs = [config for config in all_configs or () if make_key(config) not in self._seen]
            config = self._draw.choice(untried_configs) if untried_configs else self._space.sample_config(self._draw)
            while make_key(config) in self._seen:
                config = self._space.sample_config(self._draw)
        self._seen.add(make_key(config))
        return config
