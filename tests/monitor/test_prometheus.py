"""The figures for Prometheus: as its text format wants them, and gone with the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import simulated_run as simulated

import launch
from matex_tf.monitor import prometheus, recording

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+]+)')


def parsed(text):
    """The values by metric and rank; each metric has one HELP and one TYPE, before its samples."""
    values, kinds = {}, {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split()[2] not in kinds
            name = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name
            kinds[name] = line.split()[3]
        else:
            match = SAMPLE.fullmatch(line)
            assert match and match[1] == name in kinds, line
            labels = dict(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2]))
            values[name, int(labels["rank"])] = float(match[3])
    return values, kinds


def test_each_rank_has_each_figure(tmp_path):
    folder = tmp_path / 'a "run"\\'
    simulated.start(folder, 3, 20)
    values, kinds = parsed(prometheus.format_metrics(recording.open_run(folder)))
    assert {rank for _, rank in values} == {0, 1, 2}
    assert values["matex_rank_rows_total", 2] == 19 * 20 * 64 and kinds["matex_rank_rows_total"] == "counter"
    assert kinds["matex_rank_resident_bytes"] == "gauge" and "matex_rank_gpu_percent" not in kinds
    assert 'a \\"run\\"\\\\"' in prometheus.format_metrics(recording.open_run(folder))


def test_the_file_is_whole_and_goes_with_the_run(tmp_path):
    where = simulated.start(tmp_path / "run", 2, 20, end="")
    words = [sys.executable, "-m", "matex_tf.launch.cli", "top", str(tmp_path / "run"), "--prometheus", "a.prom"]
    launch.execute([*words, "--once"], launch.environment(), 60, tmp_path).check()
    assert parsed((tmp_path / "a.prom").read_text())[0]
    (tmp_path / "a.prom").unlink()
    with subprocess.Popen(words, cwd=tmp_path, env=launch.environment()) as exporter:
        until = time.monotonic() + 60
        while not (tmp_path / "a.prom").exists() and time.monotonic() < until:
            time.sleep(0.05)
        exporter.terminate()  # as a service manager does
    assert exporter.returncode == 143 and not (tmp_path / "a.prom").exists()
    for rank in range(2):
        with (where / f"rank-{rank}.jsonl").open("a") as file:
            file.write(json.dumps({**simulated.sample(rank, None, 20, simulated.BEGAN), "end": "ended"}) + "\n")
    launch.execute(words, launch.environment(), 60, tmp_path).check()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
