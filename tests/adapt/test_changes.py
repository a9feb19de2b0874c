"""Which change of ranks or of the strategy is proposed, by what a step takes, and when it is worth a new start."""

import pytest

from matex_tf.adapt import changes
from matex_tf.adapt.offers import Offer

HOSTS = ["a", "b", "c", "d"]


def proposed(ranks, rows, seconds, least=1, other=("", 0.0)):
    return changes.propose_change(Offer(ranks, 6.0), HOSTS[: len(rows)], rows, seconds, least, other)


def test_ranks_are_added_for_what_a_step_then_takes_less():
    found = proposed(3, [64, 64], [0.030, 0.030])
    assert found.change.ranks == 3 and found.change.without == "" and found.gain == pytest.approx(0.010)
    assert found.change.what == "3 ranks in place of 2" and found.change.why == "a step is to take 10.0 ms less"
    assert not found.is_worth(1200, 6.0) and found.is_worth(1201, 6.0)
    assert proposed(2, [64, 64], [0.030, 0.030]) is None


def test_a_rank_is_dropped_for_whose_least_part_all_wait():
    # The others compute its row, too: 127 rows in 10 ms are 12,700 a second.
    found = proposed(3, [127, 1, 127], [0.010, 0.040, 0.010])
    assert found.change.ranks == 2 and found.change.without == "b"
    assert found.gain == pytest.approx(0.040 - 255 / 25400)
    assert "without rank 1 (b), which takes 508.0 times as long for a row" in found.change.why
    assert proposed(3, [127, 2, 127], [0.010, 0.040, 0.010]) is None, "it may have fewer"
    assert proposed(3, [127, 2, 127], [0.010, 0.040, 0.010], least=2) is not None
    assert proposed(3, [127, 1, 127], [0.010, 0.009, 0.010]) is None, "nobody waits for it"
    assert proposed(3, [3, 3, 3], [0.010, 0.010, 0.020], least=3) is None, "it is hardly slower"
    assert proposed(1, [1], [0.040]) is None


def test_a_strategy_is_changed_where_a_step_is_predicted_to_be_shorter_by_more_than_chance():
    found = proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", 0.004))
    assert found.change.strategy == "servers:auto" and found.change.ranks == 2
    assert proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", 0.002)) is None
    assert proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", -0.004)) is None
    assert proposed(4, [64, 64], [0.050, 0.060], other=("servers:auto", 0.004)).change.strategy is None, "gains more"
