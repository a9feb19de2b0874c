"""What a run has measured of its links is there for `matex info`, with doubt where there is doubt."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest

import launch
from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import Link
from matex_tf.ops import compiler

SCRIPT = """
import numpy as np, tensorflow as tf
import matex_tf
model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 3)), np.ones((64, 1)), batch_size=4, epochs=1, verbose=0)
"""


def test_a_link_in_words():
    told = str(Link({"a": 2, "b": 1}, 6e-6, 2e-10, False, 1e9))
    assert told.startswith("2 ranks on a, 1 rank on b: 6.0 us a transfer and 5 GB/s (2001-09-")
    told = str(Link(dict.fromkeys("abcde", 1), 6e-6, 0.0, True, 1e9))
    assert told.startswith("1 rank on a, 1 rank on b, 1 rank on c and 2 more hosts: the measurement of 2001-09-")
    assert "disturbed by other work" in told and "GB/s" not in told


def test_a_link_is_found_by_its_hosts(tmp_path, monkeypatch):
    monkeypatch.setattr(link_costs.cache, "find_cache_folder", lambda: tmp_path)
    assert link_costs.find_link("ab") is None
    (tmp_path / "links").mkdir()
    for hosts, byte, disturbed in (
        (("a", "a", "b"), 2e-10, False),
        (("a", "b"), 2e-10, True),
        (("c", "d"), 0.0, False),
    ):
        link = Link(dict(Counter(hosts)), 6e-6, byte, disturbed, 1e9)
        link_costs._locate_file(link.hosts).write_text(json.dumps(vars(link)))
    for number, text in enumerate(("", "[]", '{"hosts": {"a": 1}}', '{"hosts": {"a": 1}, "width": 2}')):  # incomplete
        (tmp_path / "links" / f"{number}.json").write_text(text)
    link_costs._locate_file({"f": 1}).write_text("{")
    assert len(link_costs.list_links()) == 3 and link_costs.find_link("f") is None
    assert link_costs.find_link("aab").byte == 2e-10
    assert link_costs.find_link("ab") is link_costs.find_link("cd") is link_costs.find_link("e") is None


@pytest.mark.more
def test_overlapped_updates_measure_their_link(tmp_path):
    result = launch.run(2, SCRIPT, module=False, env={"MATEX_OVERLAP": "on"}, cwd=tmp_path).check()
    told = launch.execute([launch.sys.executable, "-m", "matex_tf.launch.cli", "info"], launch.environment(), 120)
    assert "not measured yet" not in told.stdout and "2 ranks on" in told.stdout, (result.output, told.output)


# The MPI of a network that others use as well: every second sum of the probe's large ones takes 20 ms.
BUSY = r"""
#include <mpi.h>
#include <unistd.h>
extern "C" int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  static int number = 0;
  if (count == 256 << 10 && number++ % 2) usleep(20000);
  return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}
"""


@pytest.mark.more
def test_a_disturbed_measurement_leaves_the_buckets_as_they_are_and_says_so(tmp_path):
    (tmp_path / "busy.cc").write_text(BUSY)
    cxx = compiler.find_compiler().path
    library = tmp_path / "busy.so"
    subprocess.run([cxx, "-shared", "-fPIC", "-o", library, tmp_path / "busy.cc"], check=True)
    env = {"MATEX_OVERLAP": "on", "LD_PRELOAD": str(library)}
    launch.run(2, SCRIPT, module=False, env=env, cwd=tmp_path).check()
    told = launch.execute([launch.sys.executable, "-m", "matex_tf.launch.cli", "info"], launch.environment(), 120)
    assert "disturbed by other work" in told.stdout, told.output
