"""Jobs by PBS' commands, which Slurm brings for its own daemons: `qsub`, `qstat` and `qdel` of slurm-wlm-torque."""

from __future__ import annotations

import glob
import re
import shutil

import numpy as np
import pytest
from test_real_slurm import MISSING, NETWORK, PLAIN, SCRIPT, TRAIN, Cluster, daemons, losses, network

import launch

TOOLS = ("qsub", "qstat", "qdel", "generate_pbs_nodefile")
PLUGINS = {name: glob.glob(f"/usr/lib*/**/{name}", recursive=True) for name in ("spank_pbs.so", "job_submit_pbs.so")}
LACKS = [*MISSING, *(tool for tool in TOOLS if shutil.which(tool) is None), *(n for n, at in PLUGINS.items() if not at)]
pytestmark = [
    pytest.mark.skipif(bool(LACKS), reason=f"PBS' commands over a real Slurm need {', '.join(LACKS)}"),
    pytest.mark.timeout(600),
    pytest.mark.waits,
]
# Slurm tells a job all that PBS does but the file of its hosts.
NODE_FILE = ["--setup", "export PBS_NODEFILE=$(generate_pbs_nodefile)"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pbs")
    for name in ("daemons", "work"):
        (folder / name).mkdir()
    (folder / "work" / "train.py").write_text(SCRIPT)
    (folder / "daemons" / "plugstack.conf").write_text(f"required {PLUGINS['spank_pbs.so'][0]}\n")
    more = "JobSubmitPlugins=pbs\n"
    with network.Hosts(3, "1gbit", folder) as hosts, daemons.Slurm(hosts, folder / "daemons", more=more) as slurm:
        yield Cluster(hosts, slurm, folder / "work")


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_of_two_nodes_is_followed_to_its_exit_code(cluster, code):
    words = ["submit", "--pbs", "--nodes", "2", "--cpus", "1", "--time", "5", "--name", "my job", *NODE_FILE]
    found, out, err = cluster.matex(*words, "--run", NETWORK, "train.py", str(code), "two words", env=PLAIN)
    assert found == code, out + err
    said = [f"words ['two words'] on {host}\n" in out for host in ("h1", "h2")]
    assert any(said) if code else all(said), out
    assert "RUNNING on h1, h2\n" in err and err.endswith(f"FINISHED, exit code {code}\n"), err
    shown = cluster.slurm.ask("scontrol", "show", "job", err.split("PBS job ")[1].split(":")[0])
    assert all(one in shown for one in ("JobName=my_job\n", "NumNodes=2 ", "TimeLimit=00:05:00")), shown


def test_a_refused_job_leaves_nothing(cluster):
    before = sorted(cluster.folder.glob("runs/*"))
    code, _, err = cluster.matex("submit", "--pbs", "--cpus", "1", "--queue", "nosuch", "train.py", "0")
    assert code == 1 and "there is no such queue. The queues are: all, closed, urgent" in err, err
    assert sorted(cluster.folder.glob("runs/*")) == before and cluster.queue() == ""


def test_a_cancelled_job_is_not_queued_again(cluster):
    assert cluster.matex("submit", "--pbs", "--cpus", "1", "--name", "stop", "--no-follow", "train.py", "wait")[0] == 0
    output = cluster.folder / "runs" / "stop-1" / "output"
    daemons.expect(lambda: output.is_file() and "words []" in output.read_text(), 120)
    assert cluster.matex("cancel", "runs/stop-1")[0] == 0
    daemons.expect(lambda: cluster.queue() == "", 60)
    assert cluster.matex("follow", "runs/stop-1")[0] != 0


def test_training_that_is_warned_goes_on_in_another_job(cluster):
    (cluster.folder / "fit.py").write_text(TRAIN)
    alone = losses(launch.run_alone(cluster.folder / "fit.py").check().stdout)
    (cluster.folder / "slow").touch()
    words = ["submit", "--pbs", "--cpus", "1", "--name", "fit", "--nodes", "2", *NODE_FILE, "--no-follow"]
    env = {"MATEX_SAVE_SECONDS": "0.5", "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert cluster.matex(*words, "--run", f"{NETWORK} --bind-to none", "fit.py", env=env)[0] == 0
    output = cluster.folder / "runs" / "fit-1" / "output"
    daemons.expect(lambda: output.is_file() and "Epoch 2/" in output.read_text(), 200)
    number = re.search(r'"job": "(\d+)"', (output.parent / "job.json").read_text())[1]
    cluster.slurm.ask("scancel", "--batch", "--signal=USR1", number)  # as the script's own clock does
    daemons.expect(lambda: "goes on as job" in output.read_text(), 200)
    (cluster.folder / "slow").unlink()
    code, out, err = cluster.matex("follow", "runs/fit-1")
    assert code == 0 and "going on from the state kept" in out and "FINISHED, exit code 0" in err, out + err
    assert np.abs(losses(out) - alone).max() < 1e-10
