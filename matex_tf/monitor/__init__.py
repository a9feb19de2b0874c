"""Records of a running script, and their display: `matex top`, `matex run --live`, and the report.

Writing, in each rank: `sampler` writes a line of JSON a second, a *sample*: resources of the process and its host
(`machine`, `gpu`), progress, and counters of the engine. `listeners` connects it to the events of training. `log` is
the file. In a trial of `matex tune`, `trial_hooks` and `trial_log` record the logs of `fit`.

Reading, in another process: `recording` reads samples and events of all ranks. `progress` computes the time left,
`waits` says which ranks wait for which, `picture` draws the display, and `report` writes the page. `prometheus` writes
the last samples for a collector.
"""
