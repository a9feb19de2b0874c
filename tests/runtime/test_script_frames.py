"""Whose a file is, for the stack that people are shown."""

from __future__ import annotations

import pathlib
import sys

import pytest

import launch
from matex_tf import ops, readers, settings
from matex_tf.runtime import script_frames


@pytest.mark.parametrize("module", [settings, ops, readers, ops.records])
def test_all_of_the_package_is_ours_wherever_it_stands(module):
    """In a checkout ops/ and readers/ stand beside matex_tf/, in an install within it."""
    assert script_frames.is_library(module.__file__)


def test_scripts_are_not(tmp_path):
    assert not script_frames.is_library(str(tmp_path / "train.py"))
    assert not script_frames.is_library(str(tmp_path / "lib" / "python-scripts" / "train.py"))
    assert script_frames.is_library(pathlib.__file__) and script_frames.is_library(pytest.__file__)
    assert not script_frames.is_library("<stdin>") and script_frames.is_library("<frozen runpy>")


AT_WORK = """
import concurrent.futures, os, threading, time
from matex_tf.runtime.script_frames import find_thread_at_work

def until(is_at_work):
    while bool(find_thread_at_work()) != is_at_work:
        time.sleep(0.01)

pool = concurrent.futures.ThreadPoolExecutor(1)
threading.Thread(target=threading.Event().wait, daemon=True).start()
pool.submit(int).result()
until(False)  # both have come to wait for work
for start in (
    lambda work: threading.Thread(target=work).start(),
    lambda work: threading.Timer(0, work).start(),
    lambda work: pool.submit(work),
):
    begun, over = threading.Event(), threading.Event()
    def work_here():
        begun.set()
        over.wait()
    start(work_here)
    begun.wait()
    assert find_thread_at_work().endswith(", in work_here")
    over.set()
    until(False)
timer = threading.Timer(1000, print)
timer.start()
assert find_thread_at_work(), "it has to print yet"
timer.cancel()
until(False)
pool.submit(time.sleep, 1000)  # without a function of the script
until(True)
os._exit(0)
"""


def test_a_thread_at_work_for_the_script_is_told_from_one_that_waits_for_work():
    launch.execute([sys.executable, "-c", AT_WORK], launch.environment(), 60).check()
