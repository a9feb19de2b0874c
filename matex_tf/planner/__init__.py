"""Predicts the time of a step on numbers of ranks that are not available, for `matex plan` and `matex simulate`.

1. Measure (`measurement`). A *phantom* is a process that computes the script's step as rank 0 of N ranks, without the
   others; it gives the time and memory of a slice. Such a measurement is a *size*. `measurement.link` times sums
   between ranks. All measurements and assumptions are a plan (`plan_file`).
2. Predict (`predict`). The step of N ranks is its computation (`compute`: interpolated between sizes), exposed sums and
   small collectives (`costs`), and waiting for the slowest rank. `strategies` predicts other strategies than
   allreduce, `choice` names the best number of ranks and the reason. `buckets` finds which gradients travel together.
   Each number has a mark: measured, extrapolated or assumed.
3. Simulate (`simulator`). Events of ranks or of parameter servers, with what-if changes.

`papers` has the formulas of three papers, within the domain in which each holds; `queueing` is an exact model of
servers, with which they are compared.
"""
