"""Jobs at a real Kubernetes API server: what it accepts, refuses and reports, by the real kubectl.

mpijobs.py has the definition of MPIJobs that the server is given, and says what it is made of. The tests beside this
one check every job against it without a server.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path

import api_server
import mpijobs
import pytest
import yaml

import matex_tf
from matex_tf.deploy import following, job, kubernetes
from matex_tf.deploy.kubectl import states
from matex_tf.deploy.kubectl.mpijob import OVER
from matex_tf.launch import cli

MISSING = api_server.missing()
pytestmark = [
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"a real Kubernetes needs {', '.join(MISSING)}: see scripts/build_kubernetes",
    ),
    pytest.mark.timeout(600),
    pytest.mark.waits,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server.ApiServer(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, server):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(following, "ASK_EACH", 0.1)
    monkeypatch.setattr(following, "LOOK_EACH", 0.05)


def submitted(capfd, *words):
    """The name of a job of two nodes that was submitted, and what was said."""
    code = cli.main(["submit", "--kubernetes", "--image", "i:1", "--nodes", "2", "--no-follow", *words])
    said = capfd.readouterr().err
    assert code == 0, said
    return said.split("MPIJob ")[1].split()[0].rstrip(":"), said


def names(server):
    return server.kubectl("get", "mpijobs.kubeflow.org", "-A", "-o", "name").split()


class Operator:
    """What the MPI operator and the nodes do with a job: its conditions, its pods."""

    def __init__(self, server, name):
        self._server, self._name = server, name
        self._conditions: dict[str, dict] = {}

    def condition(self, kind, status="True", reason="", message=""):
        """A condition, with the operator's reason and message unless told; a job that has ended does not run."""
        default = f"MPIJob default/{self._name} is {kind.lower()}."
        if kind in ("Succeeded", "Failed") and "Running" in self._conditions:
            self._conditions["Running"]["status"] = "False"
        self._conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason or f"MPIJob{kind}",
            "message": message or default,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/{self._name}"
        conditions = list(self._conditions.values())
        has_ended = kind in ("Succeeded", "Failed") and reason != "MPIJobEvicted"
        when = {"completionTime": "2099-01-01T00:00:00Z"} if has_ended else {}
        self._server.write_status(path, {"conditions": conditions, **when})

    def pod(self, end, role, state, again=0, printed=""):
        """A pod of the job, or the new state of its container."""
        name = f"{self._name}-{end}"
        self._server.printed[name] = printed
        label = "training.kubeflow.org/"
        container = {"name": role, "image": "i:1"}
        if f"pod/{name}" not in self._server.kubectl("get", "pods", "-o", "name").split():
            labels = {f"{label}job-name": self._name, f"{label}job-role": role, f"{label}operator-name": "mpi-operator"}
            spec = {"nodeName": "node", "containers": [container]}
            metadata = {"name": name, "labels": labels}
            self._server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        shown = {**container, "imageID": "", "ready": False, "restartCount": again, "state": state}
        status = {"phase": "Running", "containerStatuses": [shown]}
        self._server.write_status(f"/api/v1/namespaces/default/pods/{name}", status)


def ended(code, message=""):
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}}


RUNS, WAITS = {"running": {}}, {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "i:1"'}}


def test_pods_are_kept_here_as_the_server_describes_them(server):
    assert mpijobs.describe_pods(json.loads(server.describe_objects())) == mpijobs.PODS.read_text()


def test_every_member_that_is_sent_is_kept(server, capfd):
    words = ["x.py", "two words", 'it\'s "quoted"', "new\nline", "$HOME $(HOME)", "a: b # c", ""]
    options = "--claim c --cpus 2 --memory 4Gi --gpus-per-node 1 --time 1:00:00 --env A=$B --env EMPTY=".split()
    name, _ = submitted(capfd, *options, *words)
    asked = kubernetes.Kubernetes(
        image="i:1", nodes=2, claim="c", cpus="2", memory="4Gi", gpus_per_node=1, time="1:00:00", env=["A=$B", "EMPTY="]
    )
    sent: dict = yaml.safe_load(kubernetes.format_job(asked.complete(words), words, name))
    kept = server.get("mpijobs.kubeflow.org", name)

    def lost(mine, theirs, at=""):
        if isinstance(mine, dict):
            return [one for key, each in mine.items() for one in lost(each, (theirs or {}).get(key), f"{at}.{key}")]
        if isinstance(mine, list):
            return [] if len(mine) == len(theirs or []) and not any(map(lost, mine, theirs)) else [at]
        return [] if mine == theirs else [at]

    assert lost(sent, kept) == []
    container = kept["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert f" {shlex.join(words)} & child=$!\n" in container["command"][-1].replace("$$", "$")


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("slotsPerWorker: 1", 'slotsPerWorker: "two"', "slotsPerWorker"),
        ('cpu: "2"', "cpu: [2]", "limits.cpu"),
        ("image:", "imgae:", "imgae"),
        ("mpiReplicaSpecs:", "replicas:", "mpiReplicaSpecs"),
        ("v2beta1", "v1", 'no matches for kind "MPIJob" in version "kubeflow.org/v1"'),
    ],
)
def test_a_broken_job_is_refused_in_the_servers_words(server, monkeypatch, old, new, words):
    before, whole = names(server), kubernetes.format_job
    monkeypatch.setattr(kubernetes, "format_job", lambda *asked: whole(*asked).replace(old, new))
    asked = kubernetes.Kubernetes(nodes=2, name="x", image="i:1", cpus="2")
    with pytest.raises(job.JobError) as refused:
        kubernetes.KUBERNETES.submit_job(asked, ["x.py"])
    assert words in str(refused.value) and str(refused.value).startswith("kubectl: "), refused.value
    assert names(server) == before


@pytest.mark.parametrize(
    "options, context, words",
    [
        (["--namespace", "nosuch"], "admin", ['namespaces "nosuch" not found', "kubectl get namespaces"]),
        ([], "ann", ['User "ann" cannot create resource "mpijobs"', "you may not do that with MPIJobs there"]),
        ([], "expired", ["your login has run out: log in to the cluster again"]),
        ([], "nowhere", ["connection refused", "the cluster does not answer at this address"]),
        ([], "nosuch", ["specified context: nosuch"]),
    ],
)
def test_a_refusal_says_what_it_means(server, capfd, monkeypatch, tmp_path, options, context, words):
    config = json.loads(Path(server.environment["KUBECONFIG"]).read_text())
    config["clusters"].append({"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}})
    config["contexts"].append({"name": "nowhere", "context": {"cluster": "nowhere", "user": "admin"}})
    (tmp_path / "config").write_text(json.dumps({**config, "current-context": context}))
    before = names(server)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert cli.main(["submit", "--kubernetes", "--image", "i:1", *options, "x.py"]) == 1
    said = capfd.readouterr().err
    assert all(each in said for each in words) and "Traceback" not in said, said
    if context in ("ann", "expired"):  # what a cluster refuses to tell, it would refuse again
        assert cli.main(["follow", "x-bbbbb"]) == 1 and cli.main(["cancel", "x-bbbbb"]) == 1
        said = capfd.readouterr().err
        assert words[-1] in said and "asked again" not in said
    monkeypatch.setenv("KUBECONFIG", server.environment["KUBECONFIG"])
    assert names(server) == before


def test_a_full_namespace_is_told(server, capfd):
    server.kubectl("create", "namespace", "full")
    hard = {"count/mpijobs.kubeflow.org": "0"}
    metadata = {"name": "quota", "namespace": "full"}
    server.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})
    server.write_status("/api/v1/namespaces/full/resourcequotas/quota", {"hard": hard, "used": hard})
    assert cli.main(["submit", "--kubernetes", "--image", "i:1", "--namespace", "full", "x.py"]) == 1
    said = capfd.readouterr().err
    assert "exceeded quota: quota" in said and "the namespace has no room for it" in said, said


def test_each_state_that_the_operator_writes(server, capfd):
    name, _ = submitted(capfd, "--claim", "c", "x.py")
    run, operator = job.Job(name), Operator(server, name)

    def state():
        return str(kubernetes.KUBERNETES.find_state(run))

    assert state() == "accepted"
    operator.condition("Created")
    assert state() == "Created"
    operator.pod("worker-0", "worker", WAITS)
    assert state() == (
        f'waits ({name}-worker-0: ImagePullBackOff: Back-off pulling image "i:1"): '
        "the image is not there, or may not be pulled: is --image right?"
    )
    operator.pod("worker-0", "worker", RUNS)
    operator.pod("launcher-a", "launcher", RUNS)
    operator.condition("Running")
    assert state() == "Running on node"
    operator.pod("launcher-a", "launcher", ended(75))
    operator.pod("launcher-b", "launcher", RUNS)
    assert state() == "Running on node, requeued (1)"
    operator.condition("Failed", reason="MPIJobEvicted", message="1/2 workers are evicted")
    operator.condition("Running")
    assert state() == "Running on node (MPIJobEvicted: 1/2 workers are evicted), requeued (1)"
    operator.condition("Failed", "False")
    operator.condition("Suspended")
    operator.condition("Running", "False")
    assert kubernetes.KUBERNETES.find_state(run).phase == job.WAITING and "Suspended" in state()
    operator.condition("Suspended", "False")
    operator.condition("Running")
    operator.pod("launcher-b", "launcher", ended(3))
    operator.condition("Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")
    why = r"BackoffLimitExceeded: Job has reached the specified backoff limit"
    assert re.fullmatch(rf"Failed \({why}\) after \d+:\d\d:\d\d in 2 launchers, exit code 3", state()), state()
    assert cli.main(["cancel", name]) == 1
    assert "there is nothing to cancel" in capfd.readouterr().err


def test_a_job_is_followed_to_its_end(server, capfd):
    run = matex_tf.launch("x.py", [1], cluster=matex_tf.Kubernetes(image="i:1", nodes=2, claim="c"))
    operator, seen = Operator(server, run.id), []
    told = threading.Event()

    def play():
        """Each step waits until the one before was told."""
        operator.condition("Created")
        operator.pod("launcher-a", "launcher", RUNS, printed="Epoch 1/3\n")
        operator.condition("Running")
        told.wait(60)
        operator.pod("launcher-a", "launcher", ended(75), printed="Epoch 1/3\n")
        operator.pod("launcher-b", "launcher", ended(75), printed="Epoch 2/3\n")
        operator.pod("launcher-c", "launcher", ended(3), printed="Epoch 3/3\nan error\n")
        operator.condition("Failed", reason="BackoffLimitExceeded", message="too often")

    def say(text):
        seen.append(text)
        if "Running" in text:
            told.set()

    player = threading.Thread(target=play)
    player.start()
    saying, following.print_line = following.print_line, say
    try:
        assert run.follow() == 3
    finally:
        following.print_line = saying
        player.join()
    last = rf"{run.id} Failed \(BackoffLimitExceeded: too often\) after \d+:\d\d:\d\d in 3 launchers, exit code 3"
    assert re.fullmatch(last, seen[-1]), seen
    assert f"{run.id} Running on node" in seen
    assert capfd.readouterr().out == "Epoch 1/3\nEpoch 2/3\nEpoch 3/3\nan error\n"


def test_a_job_is_cancelled_and_one_is_removed_while_it_is_followed(server, capfd):
    name, said = submitted(capfd, "--name", "my job", "x.py")
    assert f"matex cancel {name}" in said and name.startswith("my-job-")
    assert cli.main(["cancel", name]) == 0 and f"mpijob.kubeflow.org/{name}" not in names(server)
    for words in (["cancel", name], ["follow", name]):
        assert cli.main(words) == 1
        assert f"{name} is not known to Kubernetes, or no longer" in capfd.readouterr().err
    name, _ = submitted(capfd, "x.py")
    remover = threading.Timer(0.5, subprocess.run, (["kubectl", "delete", "mpijobs.kubeflow.org", name],))
    remover.start()
    assert cli.main(["follow", name]) == 1
    remover.join()
    assert "is not known to Kubernetes, or no longer" in capfd.readouterr().err


def launcher_job(server, name, **options):
    """A batch Job as the operator makes it of an MPIJob's launcher; a function that lists its pods."""
    asked = kubernetes.Kubernetes(image="i:1", name="x", **options)
    made: dict = yaml.safe_load(kubernetes.format_job(asked, ["x.py"], name))
    replicas = made["spec"]["mpiReplicaSpecs"]["Launcher"]
    replicas["template"]["spec"]["restartPolicy"] = replicas["restartPolicy"]
    spec = {"backoffLimit": made["spec"]["runPolicy"]["backoffLimit"], "template": replicas["template"]}
    server.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    return lambda: server.get("pods", "-l", f"job-name={name}")["items"]


def wait_for(condition):
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def container_is(server, pod, state, phase, again=0):
    name = pod["metadata"]["name"]
    shown = {"name": "launcher", "image": "i:1", "imageID": "", "ready": False, "restartCount": again, "state": state}
    server.write_status(f"/api/v1/namespaces/default/pods/{name}", {"phase": phase, "containerStatuses": [shown]})


def has_failed(server, name):
    return any(each["type"] == "Failed" for each in server.get("job", name).get("status", {}).get("conditions", []))


def test_a_launcher_that_failed_stays_with_its_exit_code_and_nothing_starts_it_without_a_volume(server):
    pods = launcher_job(server, "once")
    container_is(server, wait_for(pods)[0], ended(3), "Failed")
    wait_for(lambda: has_failed(server, "once"))
    (left,) = pods()
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert left["spec"]["restartPolicy"] == "Never"


def test_a_launcher_that_asks_again_is_followed_by_another(server):
    pods = launcher_job(server, "again", claim="c", restarts=1)
    first = wait_for(pods)[0]
    container_is(server, first, ended(75), "Failed")
    both = wait_for(lambda: len(found := pods()) == 2 and found)
    (second,) = (pod for pod in both if pod["metadata"]["name"] != first["metadata"]["name"])
    assert not has_failed(server, "again")
    container_is(server, second, ended(75), "Failed")
    wait_for(lambda: has_failed(server, "again"))
    assert len(pods()) == 2


def test_after_a_run_that_is_over_no_more_launchers_come(server):
    """Kubernetes 1.20 compares with the new limit at the next failure; later ones at once."""
    pods = launcher_job(server, "over", claim="c", restarts=3)
    container_is(server, wait_for(pods)[0], ended(3, OVER), "Failed")
    assert states.list_needless({}, [as_launcher(pod) for pod in pods()]) == ["over"]
    kubernetes._stop_launching(job.Job("over-mpijob"), "over")
    for second in wait_for(lambda: [pod for pod in pods() if pod["status"]["phase"] == "Pending"]):
        container_is(server, second, ended(3, OVER), "Failed")
    wait_for(lambda: has_failed(server, "over"))
    assert len(pods()) == 2


def as_launcher(pod):
    """A pod with the label that the operator gives launchers."""
    pod["metadata"]["labels"]["training.kubeflow.org/job-role"] = "launcher"
    return pod
