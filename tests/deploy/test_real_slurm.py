"""Jobs under Slurm's own daemons, a slurmd on each of three hosts that are network namespaces of this machine."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_trials import PLAYS

import launch
from matex_tf.deploy import run_folder

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
MORE = pytest.mark.more
PLUGINS = [path for place in ("/usr/lib*", "/usr/lib/*") for path in glob.glob(f"{place}/slurm*/spank_pbs.so")]
"""By which Slurm tells jobs what PBS tells them."""
NETWORK = "--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include eth0"
SCRIPT = """\
import socket, sys, time
print("words", sys.argv[2:], "on", socket.gethostname(), flush=True)
if sys.argv[1] == "wait":
    time.sleep(300)
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
    more = "JobSubmitPlugins=pbs\n" if PLUGINS else ""
    if PLUGINS:
        (folder / "daemons" / "plugstack.conf").write_text(f"required {PLUGINS[0]}\n")
    with network.Hosts(3, "1gbit", folder) as hosts, daemons.Slurm(hosts, folder / "daemons", True, more) as slurm:
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
    ended = "COMPLETED" if code == 0 else "FAILED"
    assert re.search(rf"matex: \d+ {ended} after 0:0\d:\d\d, exit code {code}\n$", err), err
    number = err.split("job ")[1].split(":")[0]
    assert 'JobName=my "job" #1\n' in cluster.slurm.ask("scontrol", "show", "job", number)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--partition", "nosuch"], "invalid partition specified: nosuch; .*The partitions are: all, closed, urgent"),
        (["--partition", "closed", "--account", "chemistry"], "Invalid account or .*the account is not known, or you"),
        (["--time", "10", "--partition", "closed", "--account", "physics"], "Requested time limit is .*closed 5:00"),
        pytest.param(["--nodes", "9"], "More processors requested .*lower --nodes.*all 3 2", marks=MORE),
        pytest.param(
            ["--gpus-per-node", "2"],
            "generic resource .*lower --gpus-per-node.*the GPUs of a node are: all ",
            marks=MORE,
        ),
        pytest.param(
            ["--sbatch=--reservation=mine"], "reservation is invalid\n.*scontrol show reservation", marks=MORE
        ),
        (["--sbatch=--mem=900G"], "no node of the partition has so much memory"),
        (["--cpus", "3"], "lower --cpus or --ranks-per-node.*the cores of each are: all 3 2"),
        pytest.param(["--constraint", "fast"], "Invalid feature .*what --constraint names", marks=MORE),
        (["--dependency", "afterok:99999"], "Slurm knows no job 99999"),
        (["--gres", "gpu:9"], "(?s)generic resource.*no node of the cluster has such"),
        (["--sbatch=--nosuch"], "this Slurm's sbatch does not know an option"),
    ],
)
def test_a_refused_job_leaves_nothing(cluster, words, message):
    before = sorted(cluster.folder.glob("runs/*"))
    code, _, err = cluster.matex("submit", "--slurm", *words, "my train.py", "0")
    assert code == 1 and re.search(message, err, re.DOTALL) and cluster.queue() == "", err
    assert sorted(cluster.folder.glob("runs/*")) == before


def test_a_job_has_what_was_asked_whatever_the_environment_says(cluster):
    """Its nodes are whole, and its folder is that of the job which another `sbatch` makes of it."""
    words = ["submit", "--slurm", "--nodes", "2", "--name", "asked", "--time", "5", "--sbatch=--export=NONE"]
    other = {f"SBATCH_{name}": "other" for name in ("JOB_NAME", "OUTPUT")} | {"SBATCH_TIMELIMIT": "3"}
    options = ["--setup", "export MATEX_DISABLE=1", "--run", NETWORK]
    code, out, err = cluster.matex(*words, *options, "my train.py", "0", env=other)
    assert code == 0 and all(f"words [] on {host}\n" in out for host in ("h1", "h2")), out + err
    first = err.split("job ")[1].split(":")[0]
    shown = cluster.slurm.ask("scontrol", "show", "job", first)
    assert all(one in shown for one in ("JobName=asked\n", "NumNodes=2 NumCPUs=4 ", "TimeLimit=00:05:00")), shown
    before = time.time()
    second = cluster.slurm.run("sbatch", "--parsable", "runs/asked-1/job.sh", folder=cluster.folder).stdout.strip()
    code, out, err = cluster.matex("follow", "runs/asked-1")
    assert code == 0 and out.count("words [] on h1\n") == 2 and f"matex: {second} COMPLETED" in err, out + err
    assert json.loads((cluster.folder / "runs/asked-1/job.json").read_text())["job"] == second
    assert before - 1 <= run_folder.find_submit_time(str(cluster.folder / "runs/asked-1")) <= time.time()


def test_a_job_that_will_not_start_is_not_waited_for(cluster):
    failed = cluster.slurm.ask("sbatch", "--parsable", "--wrap=false", "--output=/dev/null").strip()
    daemons.expect(lambda: cluster.slurm.state(failed) == "FAILED", 60)
    words = ["submit", "--slurm", "--name", "never", f"--sbatch=--dependency=afterok:{failed}", "my train.py", "0"]
    code, _, err = cluster.matex(*words, timeout=60)
    assert code == 1 and "(DependencyNeverSatisfied): " in err and "will not start" in err, err
    assert cluster.matex("cancel", "runs/never-1")[0] == 0 and cluster.queue() == ""


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


# Training, to which something happens

TRAIN = """\
import json, os, time
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(7)
tf.keras.backend.set_floatx("float64")
x = np.random.default_rng(1).random((64, 4))
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")

class Slow(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.5 if os.path.exists("slow") else 0)

found = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=60, verbose=2, callbacks=[Slow()])
print("LOSSES", json.dumps(found.history["loss"]), flush=True)
"""


def losses(text):
    return np.array(json.loads(text.split("LOSSES ")[1].split("\n")[0]))


@pytest.fixture(scope="module")
def alone(cluster):
    """What the script alone gives."""
    (cluster.folder / "fit.py").write_text(TRAIN)
    return losses(launch.run_alone(cluster.folder / "fit.py").check().stdout)


class Training:
    """A job that trains slowly, and is followed, until something happens to it; then `ends`."""

    def __init__(self, cluster, name, *words):
        self.cluster, self.output = cluster, cluster.folder / "runs" / f"{name}-1" / "output"
        (cluster.folder / "slow").touch()
        env = {"MATEX_SAVE_SECONDS": "0.5", "OMPI_MCA_mpi_yield_when_idle": "1"}
        words = ["submit", "--slurm", "--name", name, "--run", f"{NETWORK} --bind-to none", *words, "fit.py"]
        self.child = cluster.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for("Epoch 2/")
        self.job = json.loads((self.output.parent / "job.json").read_text())["job"]

    def wait_for(self, words):
        daemons.expect(lambda: self.output.is_file() and words in self.output.read_text(), 200)

    def ends(self):
        """What was printed, and what was said."""
        (self.cluster.folder / "slow").unlink()
        out, err = self.child.communicate(timeout=300)
        assert self.child.returncode == 0, out + err
        assert (self.output.parent / "exit-code").read_text() == "0\n"
        assert not (self.output.parent / "state").exists() and self.cluster.queue() == ""
        return out, err


@pytest.mark.parametrize("how", ["warned", pytest.param("limit", marks=MORE), pytest.param("preempted", marks=MORE)])
def test_training_that_is_told_to_end_is_queued_again_and_goes_on(cluster, alone, how):
    run = Training(cluster, how, "--nodes", "2", *(["--time", "2"] if how == "limit" else []))
    if how == "warned":
        cluster.slurm.ask("scancel", "--batch", "--signal=USR1", run.job)
    if how == "preempted":  # Slurm sends the job its own signal
        cluster.slurm.ask("sbatch", *daemons.URGENT, "--nodes=3")
    run.wait_for("asked to end after 0:0")
    out, err = run.ends()
    assert len(out.split("state kept; to be requeued (1)")) == 2 and "resuming from the state saved" in out, out
    said = [line.removeprefix(f"matex: {run.job} ") for line in err.splitlines()]
    assert re.fullmatch(r"COMPLETED after 0:0\d:\d\d in 2 allocations, exit code 0", said[-1]), err
    assert any(re.match(r"RUNNING on h\[1-2\]$", line) for line in said), err
    assert np.abs(losses(out) - alone).max() < 1e-10


@pytest.mark.parametrize("keeps", ["the job is kept", pytest.param("the job is queued again", marks=MORE)])
def test_training_outlives_a_host(cluster, alone, keeps):
    kept = keeps == "the job is kept"
    words = ["--nodes", "3", "--sbatch=--no-kill"] if kept else ["--nodes", "2"]
    run = Training(cluster, "lost" if kept else "moved", *words)
    lost = "h3" if kept else "h2"
    cluster.hosts.power_off(lost)
    try:
        run.wait_for("resuming from the state saved")
        out, err = run.ends()
    finally:
        cluster.slurm.boot(lost)
    assert "COMPLETED after 0:0" in err and ("in 2 allocations" in err) != kept, err
    assert "restart 1 of 3" in out or not kept, out  # Slurm may notice first
    assert np.abs(losses(out) - alone).max() < 1e-10


# By srun

PMIX = any(
    os.path.exists(f"{place}/libpmix.so") for place in ("/usr/lib64", *glob.glob("/usr/lib/*/pmix2/lib"), "/usr/lib")
)
BY_SRUN = {f"OMPI_MCA_{name}": value for name, value in re.findall(r"--mca (\S+) (\S+)", NETWORK)}


@pytest.mark.skipif(not PMIX, reason="srun starts ranks of Open MPI by libpmix.so (libpmix-dev)")
def test_training_that_srun_starts_is_that_of_the_script_alone(cluster, alone):
    words = ["submit", "--slurm", "--launcher", "srun", "--nodes", "2", "--cpus", "1", "--name", "stepped", "fit.py"]
    code, out, err = cluster.matex(*words, env={**BY_SRUN, "OMPI_MCA_mpi_yield_when_idle": "1"})
    assert code == 0 and np.abs(losses(out) - alone).max() < 1e-10, out + err


def test_tasks_of_srun_without_pmix_do_not_train_alone(cluster):
    """They would be N jobs of one rank each, with exit code 0."""
    (cluster.folder / "train.py").write_text("import matex_tf\nprint('trained')\n")
    found = cluster.slurm.run("srun", "--mpi=none", "-N2", sys.executable, "train.py", folder=cluster.folder)
    assert found.returncode != 0 and "trained" not in found.stdout, found.stdout
    assert "sees only this one" in found.stderr and "srun --mpi=pmix" in found.stderr, found.stderr


# Arrays


def test_tasks_of_an_array_have_folders_and_exit_codes_of_their_own(cluster):
    (cluster.folder / "task.py").write_text("import os, sys\nsys.exit(int(os.environ['SLURM_ARRAY_TASK_ID']))\n")
    words = ["submit", "--slurm", "--array", "0,3%2", "--cpus", "1", "--name", "tasks", "--restarts", "0", "task.py"]
    code, out, err = cluster.matex(*words, env=PLAIN)
    folder = cluster.folder / "runs" / "tasks-1"
    assert code == 3 and "1 COMPLETED" in err and "1 FAILED" in err, out + err
    assert [(folder / f"task-{number}" / "exit-code").read_text() for number in (0, 3)] == ["0\n", "3\n"]


# By the commands of PBS, as Slurm brings them; it tells a job all that PBS does but the file of its hosts

NODE_FILE = ["--setup", "export PBS_NODEFILE=$(generate_pbs_nodefile)"]
PBS = pytest.mark.skipif(
    not PLUGINS or any(shutil.which(tool) is None for tool in ("qsub", "qstat", "qdel", "generate_pbs_nodefile")),
    reason="the commands of PBS over a real Slurm need slurm-wlm-torque",
)


@PBS
@pytest.mark.parametrize("code", [0, pytest.param(3, marks=MORE)])
def test_a_job_of_pbs_is_followed_to_its_exit_code(cluster, code):
    words = ["submit", "--pbs", "--nodes", "2", "--cpus", "1", "--time", "5", "--name", "my job", *NODE_FILE]
    found, out, err = cluster.matex(*words, "--run", NETWORK, "my train.py", str(code), "two words", env=PLAIN)
    assert found == code, out + err
    said = [f"words ['two words'] on {host}\n" in out for host in ("h1", "h2")]
    assert any(said) if code else all(said), out
    assert err.endswith(f"FINISHED, exit code {code}\n"), err
    shown = cluster.slurm.ask("scontrol", "show", "job", err.split("PBS job ")[1].split(":")[0])
    assert all(one in shown for one in ("JobName=my_job\n", "NumNodes=2 ", "TimeLimit=00:05:00")), shown


@PBS
def test_a_job_that_pbs_refuses_leaves_nothing(cluster):
    before = sorted(cluster.folder.glob("runs/*"))
    code, _, err = cluster.matex("submit", "--pbs", "--cpus", "1", "--queue", "nosuch", "my train.py", "0")
    assert code == 1 and "there is no such queue. The queues are: all, closed, urgent" in err, err
    assert sorted(cluster.folder.glob("runs/*")) == before and cluster.queue() == ""


@PBS
@MORE
def test_a_cancelled_job_of_pbs_is_not_queued_again(cluster):
    assert (
        cluster.matex(
            "submit", "--pbs", "--cpus", "1", "--name", "ceased", "--no-follow", "my train.py", "wait", env=PLAIN
        )[0]
        == 0
    )
    output = cluster.folder / "runs" / "ceased-1" / "output"
    daemons.expect(lambda: output.is_file() and "words []" in output.read_text(), 120)
    assert cluster.matex("cancel", "runs/ceased-1")[0] == 0
    daemons.expect(lambda: cluster.queue() == "", 60)
    assert cluster.matex("follow", "runs/ceased-1")[0] != 0


@PBS
def test_training_of_pbs_that_is_warned_goes_on_in_another_job(cluster, alone):
    (cluster.folder / "slow").touch()
    elsewhere = "mkdir -p elsewhere && cp fit.py elsewhere && ln -sf ../slow elsewhere && cd elsewhere"
    words = ["submit", "--pbs", "--cpus", "1", "--name", "fit", "--nodes", "2", *NODE_FILE, "--setup", elsewhere]
    words += ["--no-follow"]
    env = {"MATEX_SAVE_SECONDS": "0.5", "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert cluster.matex(*words, "--run", f"{NETWORK} --bind-to none", "fit.py", env=env)[0] == 0
    output = cluster.folder / "runs" / "fit-1" / "output"
    daemons.expect(lambda: output.is_file() and "Epoch 2/" in output.read_text(), 200)
    number = re.search(r'"job": "(\d+)"', (output.parent / "job.json").read_text())[1]
    cluster.slurm.ask("scancel", "--batch", "--signal=USR1", number)  # as the script's own clock does
    daemons.expect(lambda: "goes on as job" in output.read_text(), 200)
    (cluster.folder / "slow").unlink()
    code, out, err = cluster.matex("follow", "runs/fit-1")
    assert code == 0 and "resuming from the state saved" in out and "FINISHED, exit code 0" in err, out + err
    assert np.abs(losses(out) - alone).max() < 1e-10


# Searches

# The runtime takes away what tells of the file of notes; of two ranks that are plain Python one notes.
PLAYS_ON_RANK_0 = "import os, sys\nif os.environ['OMPI_COMM_WORLD_RANK'] != '0': sys.exit()\n" + PLAYS.replace(
    'open(os.environ["MATEX_TRIAL"], "a")', 'open(os.path.dirname(state) + "/noted.jsonl", "a")'
)
SPACE = "search:\n  --x: {float: [0, 0.8]}\n"


@MORE
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


@MORE
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
