"""Steps found in the events of an engine: their borders, gradients, collectives."""

import numpy as np
import pytest

from matex_tf.ops import records
from matex_tf.planner.measurement.steps import FIRST, find_steps

LABELS = ["loss: a and 1 more", "a", "b", "moments"]


def _event(kind, start, duration=0, size=0, label=-1, lane=0):
    return (start, duration, size, label, records.ACTIVITIES.index(kind), lane)


def _events(updates, step=100, overlapped=False):
    """Each step: a collective at 10, gradients ready at 40 (a) and 90 (b), its end at 100; ms."""
    found = []
    for begin in range(0, updates * step, step):
        found += [
            _event("collective", begin + 10, 2, 64, 3),
            _event("rows", begin + (30 if overlapped else 90), 0, 32),
            _event("entry", begin + (30 if overlapped else 90), 0, 400, 2),
            _event("entry", begin + (30 if overlapped else 90), 0, 800, 1),
        ]
        if overlapped:
            found += [_event("announcement", begin + 30, 1, 0, 0), _event("ready", begin + 90, 0, 400, 2)]
            found += [_event("ready", begin + 40, 0, 800, 1), _event("exposed", begin + 90, 10, 0, 0, 1)]
        else:
            found.append(_event("update", begin + 90, 10, 0, 0))
    return np.array([(s * 10**6, d * 10**6, *rest) for s, d, *rest in found], records.EVENT)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_step_goes_from_update_to_update(overlapped):
    steps = find_steps(_events(12, overlapped=overlapped), LABELS)
    assert steps.seconds == pytest.approx([0.1] * (12 - FIRST - 1)) and steps.rows == 32
    assert [(g.name, g.bytes) for g in steps.gradients] == [("b", 400), ("a", 800)]
    assert steps.ready == pytest.approx([0.09, 0.04] if overlapped else [0.09, 0.09])
    kinds = ["collective", "announcement"] if overlapped else ["collective"]
    assert [one.kind for one in steps.collectives] == kinds and steps.at[0] == pytest.approx(0.01)


def test_collectives_are_known_by_kind_and_place():
    """A sparse gradient has another shape, in its name and in bytes, in each step; a step with one more is another."""
    events, labels = [_events(12)], [*LABELS, *(f"allgather of [{count}]" for count in range(12))]
    for step in range(12):
        label = labels.index(f"allgather of [{step}]")
        events.append(
            np.array([_event("allgather", (100 * step + 20) * 10**6, 10**6, 100 + step, label)], records.EVENT)
        )
    events.append(np.array([_event("collective", 730 * 10**6, 10**6, 8, 3)], records.EVENT))
    steps = find_steps(np.concatenate(events), labels)
    assert len(steps.seconds) == 12 - FIRST - 1 and steps.form[1] == ("collective", "allgather")
    assert steps.bytes == (64, 108) and steps.at == pytest.approx([0.01, 0.02])


def test_a_collective_beside_an_overlapped_update_belongs_to_its_call():
    """A gather that the update does not need begins before it is over or after it, as threads run."""
    events, called = [_events(12, overlapped=True)], [(100 * step + 104) * 10**6 for step in range(12)]
    for step in range(12):
        at = 100 * step + (99 if step % 3 == 1 else 101)
        events.append(np.array([_event("allgather", at * 10**6, 10**6, 8, 3)], records.EVENT))
    steps = find_steps(np.concatenate(events), LABELS, called)
    assert len(steps.seconds) == 12 - FIRST - 1
    assert steps.form[1] == ("collective", "announcement", "allgather")
    assert all(0.0985 < at < 0.1015 for at in steps.at[2:]) and steps.bytes[2] == 8


def test_of_several_updates_in_a_call_each_is_a_step():
    called = [(200 * step + 204) * 10**6 for step in range(6)]
    assert find_steps(_events(12, overlapped=True), LABELS, called) == find_steps(_events(12, overlapped=True), LABELS)


def test_what_lies_between_epochs_is_no_step():
    events = np.append(_events(12), np.array([_event("between steps", 605 * 10**6)], records.EVENT))
    assert len(find_steps(events, LABELS).seconds) == 12 - FIRST - 2


def test_too_few_updates_are_no_steps():
    assert find_steps(_events(FIRST + 1), LABELS) is None
    assert find_steps(np.zeros(0, records.EVENT), []) is None
