"""Jobs under Slurm's own daemons, a slurmd on each of two hosts that are network namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_trials import PLAYS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import network  # noqa: E402  (they lie beside the tests)
import slurm as daemons  # noqa: E402

MISSING = [tool for tool in (*daemons.TOOLS, *network._TOOLS) if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(
        bool(MISSING) or os.geteuid() != 0, reason=f"a real Slurm needs root and {', '.join(MISSING) or 'nothing else'}"
    ),
    pytest.mark.timeout(600),
    pytest.mark.waits,
]
NETWORK = "--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include eth0"
SCRIPT = """\
import os, signal, socket, sys, time
print("words", sys.argv[2:], "on", socket.gethostname(), flush=True)
if sys.argv[1] == "wait":
    time.sleep(300)
if sys.argv[1] == "warned":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
    time.sleep(300 if os.environ.get("SLURM_RESTART_COUNT", "0") == "0" else 0)
    sys.exit(0)
sys.exit(int(sys.argv[1]))
"""


class Cluster:
    """The hosts, their Slurm, and `matex` on the first of them, in a folder of its own."""

    def __init__(self, hosts, slurm, folder):
        self.hosts, self.slurm, self.folder = hosts, slurm, folder

    def start(self, *words, env=None, **more):
        command = [*self.hosts.enter("h1"), "env", "-C", str(self.folder), sys.executable, "-m", "matex_tf.launch.cli"]
        environment = {**self.slurm.environment, "XDG_CONFIG_HOME": str(self.folder), **(env or {})}
        return subprocess.Popen([*command, *words], env=environment, text=True, **more)

    def matex(self, *words, env=None, timeout=300):
        child = self.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = child.communicate(timeout=timeout)
        return child.returncode, out, err

    def tune(self, *words, **more):
        """`matex tune`, under way."""
        database = ["--database", str(self.folder / "tune.db")] if "--resume" not in words else []
        return self.start("tune", *database, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def queue(self):
        return self.slurm.ask("squeue", "--noheader").strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("daemons", "my work"):
        (folder / name).mkdir()
    (folder / "my work" / "my train.py").write_text(SCRIPT)
    with network.Hosts(2, "1gbit", folder) as hosts, daemons.Slurm(hosts, folder / "daemons", signalled=True) as slurm:
        yield Cluster(hosts, slurm, folder / "my work")


PLAIN = {"MATEX_DISABLE": "1"}  # the ranks are plain Python: what is tested is the job


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_of_two_nodes_is_followed_to_its_exit_code(cluster, code):
    words = ["submit", "--slurm", "--nodes", "2", "--cpus", "1", "--time", "5"]
    words += ["--name", 'my "job" #1', "--run", NETWORK]
    typed = ["two words", 'it\'s "quoted"', "new\nline", "$HOME"]
    found, out, err = cluster.matex(*words, "my train.py", str(code), *typed, env=PLAIN)
    assert found == code, out + err
    # The first rank that fails ends the other, which may not have printed yet.
    said = [f"words {typed} on {host}\n" in out for host in ("h1", "h2")]
    assert any(said) if code else all(said), out
    assert ("COMPLETED, exit code 0" if code == 0 else "FAILED, exit code 3") in err
    number = err.split("job ")[1].split(":")[0]
    assert 'JobName=my "job" #1\n' in cluster.slurm.ask("scontrol", "show", "job", number)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--partition", "nosuch"], "The partitions are: all"),
        (["--sbatch=--mem=900G"], "no node of the partition has so many cores"),
        (["--sbatch=--nosuch"], "this Slurm's sbatch does not know an option"),
    ],
)
def test_a_refused_job_leaves_nothing(cluster, words, message):
    before = sorted(cluster.folder.glob("runs/*"))
    code, _, err = cluster.matex("submit", "--slurm", *words, "my train.py", "0")
    assert code == 1 and message in err and cluster.queue() == ""
    assert sorted(cluster.folder.glob("runs/*")) == before


def test_a_cancelled_job_is_not_queued_again(cluster):
    options = ["--slurm", "--nodes", "2", "--name", "stop", "--run", NETWORK, "--no-follow"]
    assert cluster.matex("submit", *options, "my train.py", "wait", env=PLAIN)[0] == 0
    output = cluster.folder / "runs" / "stop-1" / "output"
    daemons.expect(lambda: output.is_file() and output.read_text().count("words []") == 2, 120)
    assert cluster.matex("cancel", "runs/stop-1")[0] == 0
    code, _, err = cluster.matex("follow", "runs/stop-1")
    assert code != 0 and "CANCELLED" in err
    daemons.expect(lambda: cluster.queue() == "", 60)


def test_a_node_that_does_not_see_the_folder_is_named(cluster):
    hide = "mount -t tmpfs tmpfs '" + str(cluster.folder / "runs") + "'"
    cluster.folder.joinpath("runs").mkdir(exist_ok=True)
    subprocess.run([*cluster.hosts.enter("h2"), "bash", "-c", hide], check=True)
    try:
        words = ["submit", "--slurm", "--nodes", "2", "--name", "unseen", "--run", NETWORK, "my train.py", "0"]
        code, out, err = cluster.matex(*words, env=PLAIN)
        assert code == os.EX_CONFIG and "host h2 does not see the folder of the run" in out, out + err
    finally:
        subprocess.run([*cluster.hosts.enter("h2"), "umount", str(cluster.folder / "runs")], check=True)


@pytest.mark.parametrize("how", ["warned", pytest.param("preempted", marks=pytest.mark.more)])
def test_a_job_that_is_told_to_end_is_queued_again(cluster, how):
    words = ["submit", "--slurm", "--nodes", "2", "--name", how, "--run", NETWORK, "my train.py", "warned"]
    child = cluster.start(*words, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output = cluster.folder / "runs" / f"{how}-1" / "output"
        daemons.expect(lambda: output.is_file() and output.read_text().count("words []") == 2, 120)
        number = cluster.slurm.ask("squeue", "--noheader", "--format=%i").strip()
        if how == "warned":
            cluster.slurm.ask("scancel", "--batch", "--signal=USR1", number)
        else:  # Slurm sends the job its own signal
            cluster.slurm.ask("sbatch", *daemons.URGENT, "--nodes=2")
        out, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode == 0 and "requeued (1)" in err and "COMPLETED" in err, out + err
    assert out.count("words []") == 4 and (output.parent / "exit-code").read_text() == "0\n"


# Searches

# The runtime takes away what tells of the file of notes; of two ranks that are plain Python one notes.
PLAYS_ON_RANK_0 = "import os, sys\nif os.environ['OMPI_COMM_WORLD_RANK'] != '0': sys.exit()\n" + PLAYS.replace(
    'open(os.environ["MATEX_TRIAL"], "a")', 'open(os.path.dirname(state) + "/noted.jsonl", "a")'
)
SPACE = "search:\n  --x: {float: [0, 0.8]}\n"


@pytest.mark.more
def test_a_search_by_jobs_of_two_nodes_outlives_kill_and_ctrl_c(cluster):
    (cluster.folder / "space.yaml").write_text(SPACE)
    (cluster.folder / "plays.py").write_text(PLAYS_ON_RANK_0)
    where = cluster.folder / "runs" / "tune-plays-1"
    words = ["--search", "space.yaml", "--slurm", "--nodes", "2", "--time", "5", "--run", NETWORK, "--rungs", "1,3"]
    env = {**PLAIN, "SLEEP": "0.3"}
    child = cluster.tune(*words, "--trials", "4", "--parallel", "2", "plays.py", env=env)
    for number, how in ((1, signal.SIGKILL), (3, signal.SIGINT)):
        try:
            daemons.expect((where / f"trial-{number}" / "place" / "made").exists, 120)
        finally:
            os.kill(child.pid, how)
        out, err = child.communicate(timeout=120)
        if how == signal.SIGINT:
            assert child.returncode == 130 and "To go on: matex tune --resume" in out, out + err
            daemons.expect(lambda: cluster.queue() == "", 60)
        child = cluster.tune("--resume", "runs/tune-plays-1", env=env)
    out, err = child.communicate(timeout=400)
    assert child.returncode == 0 and "best of 4 trials" in out and "matex submit --slurm --nodes=2" in out, out + err
    for trial in where.glob("trial-*"):
        epochs = list(map(int, (trial / "place" / "made").read_text().split()))
        assert set(epochs) == set(range(1, max(epochs) + 1)) and len(epochs) <= max(epochs) + 1, "one cut by Ctrl-C"
    assert cluster.queue() == ""


PLACED = """
import os, socket
print("on", socket.gethostname(), *sorted(os.sched_getaffinity(0)), "loss", 1)
"""


@pytest.mark.more
def test_trials_in_an_allocation_have_hosts_and_cores_of_their_own(cluster):
    (cluster.folder / "placed.py").write_text(PLACED)
    words = ["--search", "space.yaml", "--parallel", "4", "--trials", "4", "--run", NETWORK, "placed.py"]
    (cluster.folder / "space.yaml").write_text("objective: {regex: 'loss (.*)'}\n" + SPACE)
    inside = [sys.executable, "-m", "matex_tf.launch.cli", "tune", "--database", "tune.db", *words]
    step = ["srun", "-N1", "-n1", "--overlap"]  # the tuner may be a task itself, whose step trials do not join
    found = cluster.slurm.run("salloc", "-N2", "--ntasks-per-node=2", *step, *inside, folder=cluster.folder)
    assert found.returncode == 0, found.stdout + found.stderr
    outputs = [(cluster.folder / f"runs/tune-placed-1/trial-{number}/output").read_text() for number in (1, 2, 3, 4)]
    said = {line.split(" loss")[0] for text in outputs for line in text.splitlines() if line.startswith("on ")}
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    parts = [cores[:half], cores[half:]] if half else [cores, cores]
    assert said == {" ".join(map(str, ["on", host, *part])) for host in ("h1", "h2") for part in parts}
