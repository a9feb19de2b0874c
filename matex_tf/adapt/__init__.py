"""Decisions that a run makes by measuring its own steps. All modules listen to the events of steps (`steps.events`).

Two decisions are independent of each other:

- `step_trials`: in its first calls, each training step times the ways to compute an update (inline or overlapped, whole
  variables or pieces), where the settings are `auto`. All ways have the same bits.
- `slice_adapter` (`matex run --adapt`): slices in proportion to the speed of ranks. It measures *windows*, numbers of
  consecutive steps. After each window the ranks exchange their times, and `control` computes new *slice ratios*: with
  (2, 1), rank 0 computes two thirds of the rows. The change applies from the first batch that no rank has sliced.

With `--adapt=ranks` a window may also end the run, and `matex run` restarts it with other ranks or another strategy:
`changes` proposes a change and compares its gain with the cost of the restart, `leaving` lets the ranks leave `fit`
with a saved state, and `offers` has the files by which the ranks and `matex run` tell each other.
"""
