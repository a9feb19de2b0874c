"""Random search: each parameter is drawn uniformly from its range."""

from __future__ import annotations

import random

from matex_tf.tune.space import Config, Space


class RandomSearch:
    """See `engine.Engine`."""

    slow = False

    def __init__(self, space: Space, seed: int):
        self._space, self._draw = space, random.Random(seed)

    def ask(self) -> Config:
        return self._space.sample_config(self._draw)

    def tell(self, config: Config, cost: float) -> None:
        pass


make = RandomSearch
