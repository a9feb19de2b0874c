"""Which shares ranks are to have: found from what they took, kept where nothing is gained, not driven by chance."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matex_tf.adapt import control
from matex_tf.sharding import slice_bounds

TIMES = st.lists(st.floats(1e-4, 10), min_size=2, max_size=9)


def changes(slowness, rows=128, windows=60, noise=0.0, fixed=0.0, parts=0):
    """The changes, as {window: slices}, where a row takes rank r slowness[r] (a function of the window, or figures)."""
    chance, made, found = random.Random(0), None, {}
    for window in range(windows):
        slow = slowness(window) if callable(slowness) else slowness
        made = made or control.Control(len(slow), parts)
        slices = slice_bounds.count_dealt_rows(rows, made.ratios or (1,) * len(slow))
        took = [(fixed + count * one) * (1 + chance.gauss(0, noise)) for count, one in zip(slices, slow)]
        if ratios := made.choose_ratios(rows, took):
            found[window] = slice_bounds.count_dealt_rows(rows, ratios)
    return found


@pytest.mark.parametrize("noise", [0, 0.01, 0.02])
def test_even_ranks_stay_even(noise):
    assert changes([1, 1], windows=2000, noise=noise) == {}


def test_a_slow_rank_gets_rows_by_its_speed_once_two_windows_agree():
    assert changes([1, 2]) == {1: [85, 43]}
    assert changes([2, 1]) == {1: [43, 85]}
    first, *_, last = changes([1, 1, 3], rows=90).values()
    assert sum(first) == sum(last) == 90 and last in ([39, 38, 13], [38, 39, 13])


def test_what_does_not_depend_on_rows_only_makes_it_slower_to_get_there():
    found = list(changes([1, 2], fixed=30).values())
    assert all(a[0] < b[0] for a, b in zip(found, found[1:])), "it never overshoots"
    count = found[-1]
    assert (30 + 2 * count[1]) / (30 + count[0]) < 1.06


def test_slices_are_equal_again_once_nothing_slows_a_rank():
    assert changes(lambda window: [1, 2] if window < 20 else [1, 1]) == {1: [85, 43], 21: [64, 64]}
    last, again = list(changes(lambda window: [1, 5] if window < 40 else [1, 1]).items())[-2:]
    assert last[1][1] < 32 and again == (41, [64, 64]), "at once, however small the slice was"


def test_a_short_disturbance_changes_nothing():
    assert changes(lambda window: [1, 5] if window % 10 == 0 else [1, 1], windows=200) == {}


def test_opposite_windows_change_nothing():
    assert changes(lambda window: [1, 2] if window % 2 else [2, 1], windows=200) == {}


def test_a_change_that_is_soon_undone_is_half_undone_and_makes_the_next_one_harder():
    def slow(window):
        return [1, 2] if window % 4 < 2 else [2, 1]

    found = changes(slow, windows=400)
    assert found[1] == [85, 43] and found[3][0] > 43
    assert len(found) < 6


def test_a_long_way_back_is_no_wrong_change_undone():
    found = changes(lambda window: [1, 5] if window < 8 else [1, 1], fixed=20)
    assert found[5] == [106, 22] and found[9] == [79, 49], "not half of it"


def test_bounds_of_a_change():
    first, *_, last = changes([1, 50], windows=100).values()
    assert first == [96, 32], "at most half as many rows at once"
    assert last[1] >= 1
    crowd = list(changes([1, 9, 9, 9], rows=64, windows=100).values())
    assert max(map(max, crowd)) <= 2 * 16, "twice the equal slice is the most"


def test_slices_in_parts():
    found = changes([1, 2], parts=16)
    assert found and all(count % 8 == 0 for slices in found.values() for count in slices)


def test_the_smallest_slice():
    assert control.Control(2).compute_smallest(128) == 1
    in_parts = control.Control(2, 16)
    for rows in range(16, 200):
        smallest, other = (slice_bounds.count_dealt_rows(rows, (part, 16 - part))[0] for part in (1, 2))
        assert smallest <= in_parts.compute_smallest(rows) <= max(other, smallest)


def test_too_few_rows_or_no_time_are_left_alone():
    assert changes([1, 9, 9], rows=5) == {}
    assert control.Control(2).choose_ratios(128, [0.0, 1.0]) is None


@given(TIMES, st.integers(1, 3000), st.data())
def test_any_figures_give_shares_that_bounds_allow(seconds, rows, data):
    size = len(seconds)
    start = tuple(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)))
    made = control.Control(size, ratios=start)
    before = slice_bounds.count_dealt_rows(rows, start)
    for _ in range(2):
        ratios = made.choose_ratios(rows, seconds)
    if ratios is None:
        return
    after = slice_bounds.count_dealt_rows(rows, ratios)
    assert sum(after) == rows and min(after) >= 1
    assert max(after) <= max(2 * rows / size, *before) + 1
    # With the speeds that were seen the step is shorter by what was asked for, but for whole rows.
    speeds = [max(count, 1) / took for count, took in zip(before, seconds)]
    assert max((count - 1) / speed for count, speed in zip(after, speeds)) < max(seconds)


@given(TIMES, st.floats(1, 1000), st.data())
def test_fill_keeps_bounds_and_proportion(speeds, total, data):
    size = len(speeds)
    least = data.draw(st.lists(st.floats(0, 50), min_size=size, max_size=size))
    most = [
        low + more for low, more in zip(least, data.draw(st.lists(st.floats(0, 500), min_size=size, max_size=size)))
    ]
    found = control.divide_within_bounds(total, speeds, least, most)
    assert all(low <= part <= high for low, part, high in zip(least, found, most))
    if sum(least) <= total <= sum(most):
        assert sum(found) == pytest.approx(total, rel=1e-6)
        free = [part / speed for low, part, high, speed in zip(least, found, most, speeds) if low < part < high]
        assert max(free, default=1) == pytest.approx(min(free, default=1), rel=1e-6)
