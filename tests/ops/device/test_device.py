"""Ops on a device whose memory the host cannot access, and whose work is delayed, as on a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import launch
from matex_tf import settings
from matex_tf.ops.collectives import reduce_on_device
from matex_tf.world import world

HERE = Path(__file__).resolve().parent
DIRECT = {"MATEX_DEVICE_POINTERS": "on", "FAKE_GPU_MEMORY": "open"}
"""Settings with which MPI receives addresses of the device, whose memory the host can then access."""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    made = tmp_path_factory.mktemp("device") / "fake_gpu.so"
    compiler = shutil.which("g++") or shutil.which("c++")
    include = f"-I{tf.sysconfig.get_include()}"
    words = [compiler, "-std=c++17", "-shared", "-fPIC", HERE / "fake_gpu.cc", include, *tf.sysconfig.get_link_flags()]
    subprocess.run([*words, "-o", made], check=True)
    return made


@pytest.fixture(scope="module")
def alone(plugin):
    return read_losses(launch.run_alone(HERE / "device_case.py", plugin, "staged").check())


def read_losses(result):
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("losses ")]
    return [float(word) for word in line.split()[1:]]


@pytest.mark.parametrize(
    "ranks, way, settings",
    [
        (2, "staged", {}),
        (2, "direct", DIRECT),
        pytest.param(3, "staged", {}, marks=pytest.mark.more),
        pytest.param(3, "direct", DIRECT, marks=pytest.mark.more),
    ],
)
def test_on_a_device_ops_give_what_they_give_in_the_hosts_memory(plugin, alone, ranks, way, settings):
    result = launch.run(ranks, HERE / "device_case.py", plugin, way, env=settings).check()
    assert ("MPI is given the addresses" in result.output) == (way == "direct")
    np.testing.assert_allclose(read_losses(result), alone, rtol=1e-12)


@pytest.mark.parametrize(
    "environment, supported, said",
    [
        ({}, [True, True], ""),
        ({"MATEX_DEVICE_POINTERS": "auto"}, [True, True], "MPI is given the addresses"),
        ({"MATEX_DEVICE_POINTERS": "auto"}, [True, False], "changes nothing: the MPI of rank 1 does not say"),
        ({"MATEX_DEVICE_POINTERS": "on"}, [False, False], "MPI is given the addresses"),
        ({"MATEX_DEVICE_POINTERS": "on", "MATEX_OVERLAP": "on"}, [True, True], "changes nothing: MATEX_OVERLAP needs"),
        ({"MATEX_DEVICE_POINTERS": "auto", "MATEX_STRATEGY": "sharded"}, [True, True], "MATEX_STRATEGY needs"),
    ],
)
def test_mpi_is_given_addresses_where_every_rank_can(monkeypatch, environment, supported, said):
    monkeypatch.setattr(world, "is_active", lambda: True)
    monkeypatch.setattr(settings, "_current", settings.Settings(environment))
    monkeypatch.setattr(reduce_on_device, "_is_agreed", False)
    answer = reduce_on_device.agree_on_addresses(supported)
    assert said in answer and bool(said) == bool(answer)
    assert reduce_on_device.replaces_inline(checked=False) == ("is given" in answer)
    assert not reduce_on_device.replaces_inline(checked=True)
