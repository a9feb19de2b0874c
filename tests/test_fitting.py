"""What `fit` says of a step that is mostly communication."""

from __future__ import annotations

import pytest

from matex_tf import fitting


@pytest.mark.parametrize(
    "waited, steps, said", [(0.9, 50, True), (0.4, 50, False), (0.9, 5, False)], ids=["much", "little", "too few steps"]
)
def test_much_waiting_is_said(monkeypatch, waited, steps, said):
    notes, clock = [], iter(range(1000))
    monkeypatch.setattr(fitting.output, "note", notes.append)
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(fitting.ops, "seconds", lambda kind: 0.0)
    run = fitting.Run("fit", object())
    run.rows = 64
    watch = fitting._Clock()
    for step in range(steps + 1):
        monkeypatch.setattr(fitting.ops, "seconds", lambda kind, step=step: waited * step / 2)
        watch.tick()
    run._judge(watch)
    assert bool(notes) is said
    if said:
        assert "90% of the time" in notes[0] and "some 64 rows" in notes[0]
