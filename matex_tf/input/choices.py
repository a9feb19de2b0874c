"""The choice between two ways to make batches: each rank makes all rows, or ranks share the work and send rows.

Both ways give the same batches. The ranks time both, and agree on the faster one.
"""

from __future__ import annotations

import math

from matex_tf.runtime import objects
from matex_tf.world import world


class Choice:
    """How the batches of a source are made.

    is_shared: ranks share the work; None until they have chosen.
    seconds: this rank's times of a batch: made alone, and shared.
    batch_count: how many batches were taken.
    """

    def __init__(self) -> None:
        self.is_shared: bool | None = None
        self.seconds, self.batch_count = [math.inf, math.inf], 0

    def choose(self, subject: str) -> tuple[float, float]:
        """Choose by the times of all ranks. Collective. subject: for messages.

        Returns the times that count: where making alone is fastest, and where sharing is slowest. Sharing must save a
        batch's time on N ranks, `alone * (1 - 1 / N)`, since a rank still does 1 / N of the work.
        """
        alone_of_ranks, shared_of_ranks = zip(*objects.allgather(self.seconds, subject))
        alone, shared = min(alone_of_ranks), max(shared_of_ranks)
        self.is_shared = shared < alone * (1 - 1 / world.get_world().trainers)
        return alone, shared
