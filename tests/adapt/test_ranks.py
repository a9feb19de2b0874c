"""Ranks come and go within one command, with the result of the script alone; each change is told with its cost."""

import html
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch
from matex_tf.monitor import recording
from matex_tf.monitor.report import page

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import network

CASE = Path(__file__).with_name("changing_case.py")


LESS = r"a step is to take [\d.]+ ms less\. The"
STRATEGY = rf"--adapt: the strategy servers:auto from .* of call 1 of fit on: by the planner's model {LESS}"
UNDONE = r"--adapt: the former strategy again from .*: a step takes [\d.]+ ms, and took [\d.]+ ms before\. The"
RANKS = [
    rf"--adapt: 3 ranks in place of 2 from .* of call 1 of fit on: {LESS}",
    r"--adapt: 2 ranks in place of 3 from .*: localhost has 2 of 3 slots left\. The",
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "strategy, wanted",
    [
        ({"MATEX_STRATEGY": "allreduce"}, RANKS),
        pytest.param({}, [STRATEGY, UNDONE, *RANKS], marks=pytest.mark.more, id="and another strategy"),
    ],
)
def test_two_ranks_three_and_two_again_give_what_the_script_gives_alone(tmp_path, strategy, wanted):
    for name in ("alone", "ranks"):
        (tmp_path / name).mkdir()
    hosts = tmp_path / "ranks" / "hosts"
    hosts.write_text("localhost slots=2\n")
    env = {"MATEX_STATE": str(tmp_path / "state"), "MATEX_RECORD": str(tmp_path / "run"), **strategy}
    ended = launch.matex_run(2, "--adapt=ranks", "--hostfile", hosts, CASE, hosts.parent, env=env).check()
    found = dict(np.load(hosts.parent / "result.npz"))
    assert [ranks for ranks, _ in itertools.groupby(found.pop("ranks"))] == [2, 3, 2], ended.stderr
    launch.run_alone(CASE, tmp_path / "alone", len(found["loss"])).check()
    want = dict(np.load(tmp_path / "alone" / "result.npz"))
    assert not [name for name in found if not close(found[name], want[name])]
    told = [line.removeprefix("matex: ") for line in ended.stderr.splitlines() if "The change took" in line]
    assert len(told) == len(wanted) and all(map(re.match, wanted, told)), ended.stderr
    assert all(float(line.split()[-2]) > 0 for line in told)
    report = page.format_page(recording.open_run(tmp_path / "run"))
    assert all(html.escape(line) in report for line in told)
    failures = ("exited with non-zero status", "ended first")
    assert not [words for words in failures if words in ended.stderr], "nothing has failed"
    assert not (tmp_path / "state").exists()


LACKS = os.geteuid() != 0 or [tool for tool in network._TOOLS if shutil.which(tool) is None]


@pytest.mark.more
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(LACKS), reason="hosts on one machine need root, iproute2 and util-linux")
def test_a_host_that_comes_is_lost_and_comes_back_changes_no_result(tmp_path):
    for name in ("alone", "ranks"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "ranks"
    (folder / "hosts").write_text("h1 slots=1\nh2 slots=1\n")
    settings = {"MATEX_STRATEGY": "allreduce", "MATEX_STATE": str(tmp_path / "state"), "MATEX_SAVE_SECONDS": "1"}
    with network.Hosts(3, "1gbit", tmp_path) as hosts, (tmp_path / "said").open("w") as said:
        options = hosts.options()
        at = options.index("--host")
        words = [*options[:at], *options[at + 2 :], "--adapt=ranks", "--hostfile", folder / "hosts", CASE, folder]
        matex = [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", "2", *map(str, words)]
        env = hosts.environment({**launch.environment(settings), "HOST": "h3"})
        with subprocess.Popen([*hosts.enter("h1"), *matex], env=env, stdout=said, stderr=said) as child:
            try:
                for name, happens in (("lost", hosts.power_off), ("back", hosts.plug)):
                    while not (folder / name).exists():
                        assert child.poll() is None, (tmp_path / "said").read_text()
                        time.sleep(0.1)
                    happens("h3")
                assert child.wait() == 0, (tmp_path / "said").read_text()
            finally:
                child.kill()
    found = dict(np.load(folder / "result.npz"))
    assert [ranks for ranks, _ in itertools.groupby(found.pop("ranks"))] == [2, 3, 2, 3]
    launch.run_alone(CASE, tmp_path / "alone", len(found["loss"])).check()
    want = dict(np.load(tmp_path / "alone" / "result.npz"))
    assert not [name for name in found if not close(found[name], want[name])]
