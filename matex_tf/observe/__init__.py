"""Where the time of a run goes: timeline, profile, costs of links, and warnings about lost time.

The engine (C++) records what it does; the modules here read its records in a rank, at the end of the run or in between.
An *update* is the sum of a step's gradients over the ranks. *Exposed* time is spent on sums that no computation hides.

- For a user: `profile` (the table of `matex run --profile`, with `balance`: which rank is waited for), `timeline` (a
  file for Perfetto, with `clocks`: the offsets of hosts' clocks), `bottlenecks` (one line if much time is lost).
- For `matex plan`: `measured_steps` (the steps of a phantom rank), `input_costs`, `epochs` (batches of an epoch),
  `link_costs` (measured links, kept for later runs).
- For `matex run --check`: `check_recorder` records the first steps.
"""
