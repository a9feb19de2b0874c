"""An MPIJob as text, and what `matex submit --kubernetes` asks of kubectl and makes of its answers."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_commands import Fakes
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from matex_tf.deploy import following, job, kubernetes, run_folder
from matex_tf.deploy.kubectl import mpijob as jobs_text
from matex_tf.deploy.kubectl import states
from matex_tf.deploy.kubectl.mpijob import OVER
from matex_tf.launch import cli

MPIJOB = """\
apiVersion: "kubeflow.org/v2beta1"
kind: "MPIJob"
metadata:
  name: "train-x7k2q"
  annotations:
    "matex-tf/name": "train"
  namespace: "science"
spec:
  slotsPerWorker: 2
  launcherCreationPolicy: "WaitForWorkersReady"
  runPolicy:
    cleanPodPolicy: "Running"
    backoffLimit: 3
    activeDeadlineSeconds: 7200
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: "Never"
      template:
        metadata:
          annotations:
            "sidecar.istio.io/inject": "false"
        spec:
          terminationGracePeriodSeconds: 120
          containers:
            - name: "launcher"
              image: "registry/train:1"
              command:
                - "bash"
                - "-c"
                - SCRIPT
              env:
                - name: "MATEX_STATE"
                  value: "/runs/train-x7k2q/state"
                - name: "MATEX_RECORD"
                  value: "/runs/train-x7k2q"
              volumeMounts:
                - name: "runs"
                  mountPath: "/runs"
          volumes:
            - name: "runs"
              persistentVolumeClaim:
                claimName: "shared"
    Worker:
      replicas: 4
      restartPolicy: "OnFailure"
      template:
        metadata:
          annotations:
            "sidecar.istio.io/inject": "false"
        spec:
          terminationGracePeriodSeconds: 120
          containers:
            - name: "worker"
              image: "registry/train:1"
              resources:
                limits:
                  cpu: "8"
                  memory: "32Gi"
              volumeMounts:
                - name: "runs"
                  mountPath: "/runs"
          volumes:
            - name: "runs"
              persistentVolumeClaim:
                claimName: "shared"
"""
ASKED = kubernetes.Kubernetes(
    nodes=4, ranks_per_node=2, time="2:00:00", name="train", image="registry/train:1", cpus="8", memory="32Gi",
    namespace="science", claim="shared",
)  # fmt: skip
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


def launcher_of(text: str) -> dict[str, Any]:
    return yaml.safe_load(text)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]


def command_of(text: str) -> list[str]:
    """The words of the launcher's command."""
    return launcher_of(text)["command"]


def as_kubernetes_expands(word: str) -> str:
    """A word of a command with $(NAME) and $$ as Kubernetes reads them, where no variable is known."""
    return word.replace("$$", "$")


def test_the_job_as_text():
    text = kubernetes.format_job(ASKED, ["train.py", "--epochs", "90"], "train-x7k2q")
    script = command_of(text)[2]
    assert yaml.safe_load(text) == yaml.safe_load(MPIJOB.replace("SCRIPT", json.dumps(script)))
    assert "\nmatex run --restarts 3 -n 8 --hostfile /etc/mpi/hostfile train.py --epochs 90 & child=$$!\n" in script
    assert subprocess.run(["bash", "-n"], input=as_kubernetes_expands(script), text=True).returncode == 0


def test_without_a_volume_nothing_is_started_again():
    text = kubernetes.format_job(kubernetes.Kubernetes(image="a", name="a", gpus_per_node=2), ["a.py"], "a-1")
    assert "backoffLimit: 0" in text and "MATEX_" not in text and "volume" not in text
    assert '"nvidia.com/gpu": "2"' in text


@hypothesis_settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=4), value=WORDS)
def test_arguments_arrive_as_they_were_typed(words, value, tmp_path_factory):
    where = tmp_path_factory.mktemp("typed")
    (where / "matex").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > given\n')
    (where / "matex").chmod(stat.S_IRWXU)
    asked = kubernetes.Kubernetes(name="a", image="a", matex="./matex", env=(f"VALUE={value}",), setup=("cd .",))
    text = kubernetes.format_job(asked, words, "a-1")
    subprocess.run([as_kubernetes_expands(word) for word in command_of(text)], cwd=where)
    given = (where / "given").read_bytes().decode().split("\0")[:-1]
    assert given == ["run", "--restarts", "3", "-n", "1", "--hostfile", "/etc/mpi/hostfile", *words]
    assert as_kubernetes_expands(launcher_of(text)["env"][0].get("value", "")) == value


def launcher_words(asked, folder):
    """The command of the job's launcher, whose last words Kubernetes would read in the file "told" of `folder`."""
    (folder / "told").write_text("")
    text = kubernetes.format_job(asked, ["a.py"], "a-1")
    assert "/dev/termination-log" in text
    return [as_kubernetes_expands(word).replace("/dev/termination-log", f"{folder}/told") for word in command_of(text)]


def test_a_volume_that_cannot_be_written_is_told_and_nothing_is_trained(tmp_path):
    asked = kubernetes.Kubernetes(name="a", image="a", matex="touch trained", claim="c", folder=f"{tmp_path}/file")
    (tmp_path / "file").write_text("")
    ended = subprocess.run(launcher_words(asked, tmp_path), cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 73 and not (tmp_path / "trained").exists()
    assert f"cannot write {tmp_path}/file/a-1: is the volume of --claim full, or may " in ended.stderr
    assert (tmp_path / "told").read_text() == "matex: the run is over\n"


@pytest.mark.parametrize("code, again", [(0, False), (3, False), (137, False), (75, True)])
def test_only_a_run_that_asks_for_it_is_started_again(tmp_path, code, again):
    asked = kubernetes.Kubernetes(
        name="a", image="a", matex="./matex", claim="c", folder=str(tmp_path), namespace="science"
    )
    (tmp_path / "matex").write_text(f"#!/bin/bash\necho run >> runs\nexit {code}\n")
    (tmp_path / "matex").chmod(stat.S_IRWXU)
    words = launcher_words(asked, tmp_path)
    for _ in range(2):
        assert subprocess.run(words, cwd=tmp_path).returncode == code
        assert (tmp_path / "told").read_text() == ("" if again else "matex: the run is over\n")
        (tmp_path / "told").write_text("")
    assert (tmp_path / "runs").read_text().count("run") == 1 + again
    assert run_folder.read_note(tmp_path / "a-1") == ("kubernetes", job.Job("a-1", str(tmp_path / "a-1"), "science"))


def test_an_exit_code_for_which_there_was_no_room_ends_no_later_launcher(tmp_path):
    asked = kubernetes.Kubernetes(name="a", image="a", matex="./matex", claim="c", folder=str(tmp_path))
    (tmp_path / "matex").write_text("#!/bin/bash\nexit 3\n")
    (tmp_path / "matex").chmod(stat.S_IRWXU)
    (tmp_path / "a-1").mkdir()
    (tmp_path / "a-1" / run_folder.EXIT_CODE).write_text("")
    assert subprocess.run(launcher_words(asked, tmp_path), cwd=tmp_path).returncode == 3


def test_a_launcher_that_is_asked_to_end_asks_the_run(tmp_path):
    asked = kubernetes.Kubernetes(name="a", image="a", matex="./matex")
    (tmp_path / "matex").write_text("#!/bin/bash\ntrap 'exit 75' TERM\ntouch began\nwhile :; do sleep 0.05; done\n")
    (tmp_path / "matex").chmod(stat.S_IRWXU)
    words = [as_kubernetes_expands(word) for word in command_of(kubernetes.format_job(asked, ["a.py"], "a-1"))]
    with subprocess.Popen(words, cwd=tmp_path) as child:
        while not (tmp_path / "began").exists():
            assert child.poll() is None
        child.terminate()
        assert child.wait(30) == 75


def test_a_launcher_that_is_asked_to_end_before_its_run_is_ready_goes_on_later(tmp_path):
    setup = "touch asked; while [ -e asked ]; do sleep 0.05; done"
    (tmp_path / "matex").write_text("#!/bin/bash\ntrap '' TERM\ntouch begun\nexec sleep 10\n")
    (tmp_path / "matex").chmod(stat.S_IRWXU)
    asked = kubernetes.Kubernetes(name="a", image="a", matex="./matex", setup=[setup], claim="c", folder=str(tmp_path))
    words = [as_kubernetes_expands(word) for word in command_of(kubernetes.format_job(asked, ["a.py"], "a-1"))]
    with subprocess.Popen(words, cwd=tmp_path) as child:
        while not (tmp_path / "asked").exists():
            assert child.poll() is None
        child.terminate()
        (tmp_path / "asked").unlink()
        assert child.wait(30) == 75
    assert not (tmp_path / "a-1" / "exit-code").exists() and not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    "name, stem",
    [("My Train_1", "my-train-1"), ("1st", "run-1st"), ("é", "run"), ("x" * 90, "x" * 40), ("a-.b", "a-b")],
)
def test_names_are_kubernetes_own(name, stem):
    made = jobs_text.make_name(name)
    assert made[:-6] == stem and jobs_text.is_name(made) and made != jobs_text.make_name(name)


@given(
    st.recursive(
        WORDS | st.integers() | st.booleans() | st.none(), lambda one: st.lists(one) | st.dictionaries(WORDS, one)
    )
)
def test_yaml_is_read_as_it_was_written(value):
    assert yaml.safe_load(jobs_text.dump_yaml({"spec": value})) == {"spec": value}


@pytest.mark.parametrize("text", ["1e3", "yes", "0o7", "1_000", "null", "", "~", "2024-01-01", "0x1F", "1:30"])
def test_yaml_quotes_texts_that_look_like_other_things(text):
    assert f'"{text}"' in jobs_text.dump_yaml({"value": text})


NO_MATEX = "the image has no `matex`: install matex_tf in it, or say --matex"


def pod(name, role="launcher", state=None, again=0, **status):
    labels = {"training.kubeflow.org/job-role": role}
    container = [{"state": state or {}, "restartCount": again}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": f"n-{name}"},
        "status": {"containerStatuses": container, **status},
    }


def ended(code, message=""):
    return {"terminated": {"exitCode": code, "message": f"{message}\n", "finishedAt": "2026-11-27T10:01:02Z"}}


def mpijob(*conditions, took=83):
    """An MPIJob; one that has ended, `took` so many seconds for it. A condition may be followed by its reason."""
    shown = [(each.partition(" ")[0], each.partition(" ")[2]) for each in conditions]
    status = {"conditions": [{"type": kind, "status": "True", "reason": why or f"Job{kind}"} for kind, why in shown]}
    if took is not None and {"Succeeded", "Failed"} & {kind for kind, _ in shown}:
        status["completionTime"] = f"2026-11-27T10:{took // 60:02}:{took % 60:02}Z"
    return {"metadata": {"creationTimestamp": "2026-11-27T10:00:00Z"}, "status": status}


@pytest.mark.parametrize(
    "found, pods, phase, words",
    [
        ({"metadata": {}}, [], job.WAITING, "accepted"),
        (mpijob("Created"), [pod("w0", "worker")], job.WAITING, "Created"),
        (mpijob("Created", "Running"), [pod("l"), pod("w0", "worker")], job.RUNNING, "Running on n-l, n-w0"),
        (
            mpijob("Created", "Running"),
            [pod("l", again=2), pod("l2")],
            job.RUNNING,
            "Running on n-l, n-l2, requeued (3)",
        ),
        (
            mpijob("Created"),
            [pod("w0", "worker", {"waiting": {"reason": "ErrImagePull", "message": "no such image"}})],
            job.WAITING,
            "waits (w0: ErrImagePull: no such image): the image is not there, or may not be pulled: is --image right?",
        ),
        (
            mpijob("Created"),
            [pod("w0", "worker", conditions=[{"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}])],
            job.WAITING,
            "waits (w0: Unschedulable: 0/3 nodes): no node has what a pod asks for, or its volume is not there",
        ),
        (mpijob("Created", "Succeeded"), [pod("l")], job.ENDED, "Succeeded after 0:01:23, exit code 0"),
        (
            mpijob("Running", "Failed MPIJobEvicted", took=None),
            [pod("l"), pod("w0", "worker")],
            job.RUNNING,
            "Running on n-l, n-w0 (MPIJobEvicted)",
        ),
        (
            mpijob("Created", "Failed"),
            [pod("l", state={"terminated": {"exitCode": 75}}), pod("l2", state={"terminated": {"exitCode": 3}})],
            job.ENDED,
            "Failed (JobFailed) after 0:01:23 in 2 launchers, exit code 3",
        ),
        (
            mpijob("Failed"),
            [pod("l", state={"terminated": {"exitCode": 127}})],
            job.ENDED,
            f"Failed (JobFailed) after 0:01:23, exit code 127: {NO_MATEX}",
        ),
        (mpijob("Failed"), [], job.ENDED, "Failed (JobFailed) after 0:01:23"),
        (
            mpijob("Created", "Running"),
            [pod("l", state=ended(75)), pod("l2", state=ended(3, OVER)), pod("l3", state=ended(3, OVER))],
            job.ENDED,
            "Failed after 0:01:02 in 2 launchers, exit code 3",
        ),
        (
            mpijob("Created", "Running"),
            [pod("l", state=ended(127, OVER))],
            job.ENDED,
            f"Failed after 0:01:02, exit code 127: {NO_MATEX}",
        ),
        (
            mpijob("Created", "Failed Limit"),
            [pod("l", state=ended(3, OVER)), pod("l2", state=ended(3, OVER))],
            job.ENDED,
            "Failed (Limit) after 0:01:23, exit code 3",
        ),
        (
            mpijob("Created", "Running"),
            [pod("l", state=ended(137)), pod("l2", state={"running": {}})],
            job.RUNNING,
            "Running on n-l, n-l2, requeued (1)",
        ),
    ],
)
def test_what_kubernetes_says_of_a_job(found, pods, phase, words):
    now = states.read_state(found, pods)
    assert (now.phase, str(now)) == (phase, words)


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """A kubectl of which a test says what it answers to `get mpijobs`, `get pods` and the rest."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(following, "ASK_EACH", 0.0)
    monkeypatch.setattr(following, "LOOK_EACH", 0.01)
    return Fakes(tmp_path / "bin")


def kubectl(fakes, jobs, pods, rest="cat > given", logs='echo "line of ${@: -1}"'):
    fakes.answers("jobs", *(json.dumps(each) if each is not None else "" for each in jobs))
    fakes.answers("pods", *(json.dumps({"items": each}) for each in pods))
    fakes.add(
        "kubectl",
        f'case "$*" in *"get mpijobs"*) next jobs;; *"get pods"*) next pods;; *logs*) {logs};; *) {rest};; esac',
    )


def test_a_job_is_submitted_and_followed_to_its_exit_code(fakes, capfd):
    first = pod("l-1", state={"terminated": {"exitCode": 75}})
    second = pod("l-2", state={"running": {}})
    ended = pod("l-2", state={"terminated": {"exitCode": 3}})
    kubectl(
        fakes,
        [mpijob("Created"), mpijob("Created", "Running"), mpijob("Created", "Running"), mpijob("Created", "Failed")],
        [[], [first], [first, second], [first, ended]],
    )
    words = [
        "submit",
        "--kubernetes",
        "--image",
        "i:1",
        "--nodes",
        "2",
        "--namespace",
        "science",
        "train.py",
        "two words",
    ]
    assert cli.main(words) == 3
    out, err = capfd.readouterr()
    assert out == "line of l-1\nline of l-2\n"
    name = fakes.calls[1].split()[4]
    first_line, *others = err.splitlines()
    assert f"MPIJob {name} in namespace science: a launcher and 2 workers, 2 ranks; without --claim" in first_line
    assert f"matex follow --namespace science {name}; end: matex cancel --namespace science {name})" in first_line
    assert others == [
        f"matex: {name} Created",
        f"matex: {name} Running on n-l-1",
        f"matex: {name} Running on n-l-1, n-l-2, requeued (1)",
        f"matex: {name} Failed (JobFailed) after 0:01:23 in 2 launchers, exit code 3",
    ]
    assert fakes.calls[0] == "kubectl --namespace=science create -f -"
    assert " train.py 'two words' & child" in command_of(Path("given").read_text())[-1]
    assert not Path("runs").exists()


def test_output_after_a_lost_connection_is_shown_once(fakes, capfd):
    """`kubectl logs --follow` ends with the connection, and may end so in the middle of a line."""
    runs, over = [pod("l-1", state={"running": {}})], [pod("l-1", state=ended(3, OVER))]
    complete = f'[ "$(cat {fakes.folder}/pods.n)" = 4 ] && printf "one\\ntwo\\nthree\\n"'  # when the launcher is over
    kubectl(fakes, [mpijob("Created", "Running")], [runs, runs, runs, over], logs=f"{complete} || next logs")
    fakes.answers("logs", "one\n", "one\ntw")
    assert cli.main(["follow", "train-x7k2q"]) == 3
    assert capfd.readouterr().out == "one\ntwo\nthree\n"


def test_a_run_that_is_over_and_holds_workers_can_be_cancelled(fakes):
    kubectl(fakes, [mpijob("Created", "Running")], [[pod("l-1", state=ended(3, OVER))]])
    assert cli.main(["cancel", "train-x7k2q"]) == 0
    assert fakes.calls[-1] == "kubectl delete mpijobs.kubeflow.org train-x7k2q --wait=false"


def test_a_run_that_is_over_keeps_no_workers(fakes, capfd):
    over = pod("l-1", state=ended(3, OVER))
    over["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train-x7k2q-launcher"}]
    kubectl(fakes, [mpijob("Created", "Running")], [[over]], rest="echo 'jobs.batch is forbidden' >&2; exit 1")
    assert cli.main(["follow", "train-x7k2q"]) == 3
    assert capfd.readouterr().err == "matex: train-x7k2q Failed after 0:01:02, exit code 3\n"
    patches = [call for call in fakes.calls if " patch " in call]
    assert patches == ['kubectl patch jobs.batch train-x7k2q-launcher -p {"spec":{"backoffLimit":0}}']


@pytest.mark.parametrize(
    "words, expected",
    [
        (
            'error: no matches for kind "MPIJob" in version "x"',
            "whoever runs it installs https://github.com/kubeflow/mpi-operator",
        ),
        ('Error from server (Forbidden): mpijobs is forbidden: User "ann"', "you may not do that with MPIJobs there"),
        ("Error from server (NotFound): namespaces", "there is no such namespace"),
        ("something new", "kubectl: something new"),
    ],
)
def test_a_refused_job_leaves_nothing(fakes, capfd, words, expected):
    fakes.add("kubectl", f"case \"$*\" in create*) cat > /dev/null; echo '{words}' >&2; exit 1;; esac")
    assert cli.main(["submit", "--kubernetes", "--image", "i", "x.py"]) == 1
    said = capfd.readouterr().err
    assert words.removeprefix("error: ") in said and expected in said
    assert fakes.calls[1].startswith("kubectl delete mpijobs.kubeflow.org x-") and len(fakes.calls) == 2


NOWHERE = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"


def test_without_a_cluster_nothing_is_asked_again(fakes, capfd):
    logged = 'E1127 20:48:10.336202   10854 memcache.go:265] "Unhandled Error" err="dial tcp: connection refused"'
    fakes.add("kubectl", f"cat > /dev/null; echo '{logged}' >&2; echo '{NOWHERE}' >&2; exit 1")
    means = "That is: kubectl knows no cluster here: `kubectl config get-contexts` lists those that it knows."
    for words in (["submit", "--kubernetes", "--image", "i", "x.py"], ["follow", "x-bbbbb"], ["cancel", "x-bbbbb"]):
        assert cli.main(words) == 1
        assert capfd.readouterr().err == f"matex {words[0]}: kubectl: {NOWHERE}\n{means}\n"
    for command in ("follow", "cancel", "top", "report"):  # a folder that was misspelt
        assert cli.main([command, "train-1"]) == 1
        said = capfd.readouterr().err
        assert said.startswith(f"matex {command}: there is no folder train-1 in ") and "kubectl" not in said
        assert "A job of Slurm has a number" in said
    fakes.add("kubectl", "echo 'error: You must be logged in to the server (Unauthorized)' >&2; exit 1")
    assert cli.main(["follow", "train-1"]) == 1
    assert "there is no folder train-1, and as a job: kubectl: You must be logged in" in capfd.readouterr().err


def test_an_interrupted_submit_leaves_nothing(fakes):
    fakes.add("kubectl", 'case "$*" in create*) kill -INT $PPID; sleep 5;; esac')
    assert cli.main(["submit", "--kubernetes", "--image", "i", "x.py"]) == 130
    assert fakes.calls[1].startswith("kubectl delete mpijobs.kubeflow.org x-")


def test_without_kubectl(fakes, capfd, monkeypatch):
    monkeypatch.setenv("PATH", str(fakes.folder))
    assert cli.main(["submit", "--kubernetes", "--image", "i", "x.py"]) == 1
    assert "there is no kubectl on this machine. Install it" in capfd.readouterr().err


def test_a_job_that_is_gone_and_one_that_is_cancelled(fakes, capfd):
    kubectl(fakes, [mpijob("Created"), None], [[]])
    assert cli.main(["cancel", "train-x7k2q"]) == 0
    assert fakes.calls[-1] == "kubectl delete mpijobs.kubeflow.org train-x7k2q --wait=false"
    assert cli.main(["follow", "--namespace", "science", "train-x7k2q"]) == 1
    assert "train-x7k2q is not known to Kubernetes in namespace science, or no longer" in capfd.readouterr().err
    assert cli.main(["cancel", "train-x7k2q"]) == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["--kubernetes", "x.py"], "--kubernetes needs --image"),
        (["--slurm", "--kubernetes", "--image", "i", "x.py"], "--kubernetes and --slurm do not go together"),
        (["--kubernetes", "x.py", "--image", "i", "--slurm"], "--kubernetes and --slurm do not go together"),
        (["--slurm", "x.py", "--nodes"], "Option '--nodes' requires an argument"),
        (["--kubernetes", "--image", "i", "--partition", "p", "x.py"], "--partition goes with --slurm"),
        (["--slurm", "--image", "i", "x.py"], "--image goes with --kubernetes"),
        (["--kubernetes", "--image", "i", "--env", "A", "x.py"], "expected env to be NAME=VALUE; given 'A'"),
        (["--kubernetes", "--image", "i", "--folder", "runs", "x.py"], "expected folder to begin with /"),
        (["--kubernetes", "--image", "i", "--folder", "/a:b", "x.py"], "expected folder to have no colon"),
        (["--kubernetes", "--image", "i", "--namespace", "No Such", "x.py"], "expected namespace to be small letters"),
        (["--kubernetes", "--image", "i", "--claim", "a_b", "x.py"], "expected claim to be small letters"),
        (["--kubernetes", "--image", "i", "--cpus", "two", "x.py"], "expected cpus to be as 8 or 500m; given 'two'"),
        (["--kubernetes", "--image", "i", "--memory", "4GB", "x.py"], "expected memory to be as 32Gi or 32G"),
        (["--kubernetes", "--image", "i", "--memory", "0", "x.py"], "expected memory to be as 32Gi or 32G"),
    ],
)
def test_what_submit_cannot_do(fakes, capfd, words, message):
    assert cli.main(["submit", *words]) == 2 and message in capfd.readouterr().err
