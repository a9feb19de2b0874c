"""An MPIJob: its options, its name, its YAML, and the shell script of its launcher."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from matex_tf.deploy import run_folder, shell_text
from matex_tf.deploy.options import FOLDER_VARIABLES, NAME, Options, check_variables, declare, parse_time

HOSTFILE = "/etc/mpi/hostfile"  # written by the MPI operator
GRACE = 120  # seconds for the ranks to save their state after Kubernetes asks the launcher to end
_HOST_OPTIONS = {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "--host", "-host", "-H"}
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_AMOUNT = r"(?=.*[1-9])\d+(\.\d+)?([KMGTPE]i|[mkMGTPE])?"  # a quantity of Kubernetes above 0: 8, 500m or 32Gi
_ENDING_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of the random ending of a job's name
_MAX_STEM = 40  # characters of a job's name without the ending; the names of its pods are longer, at most 63
OVER = "matex: the run is over"
"""The termination message, which Kubernetes keeps with an ended container, of a launcher whose exit code is the exit
code of the run: no further launcher should start. Without a volume, no launcher writes it.
"""


@dataclass(frozen=True, kw_only=True)
class Kubernetes(Options):
    """The options of a Kubernetes job. `claim` is the PersistentVolumeClaim that all pods mount at `folder`."""

    image: str = declare("", "Kubernetes: with matex_tf, TensorFlow, MPI, bash and sshd.", "IMAGE")
    memory: str = declare("", "Kubernetes: the memory of each worker: 32Gi.", "BYTES")
    namespace: str = declare("", "Kubernetes: the namespace.", "NAMESPACE")
    claim: str = declare("", "Kubernetes: the volume claim for state and records.", "NAME")
    folder: str = declare("/runs", "Kubernetes: the mount point of the volume; default: /runs.", "PATH")
    env: Sequence[str] = declare((), "Kubernetes: an environment variable of the run.", "NAME=VALUE")
    cpus_form = _AMOUNT, "as 8 or 500m"  # the pattern of `cpus` that `Options` checks, and its words in the error

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.folder.startswith("/"):
            raise ValueError(f"expected folder to begin with /; given {self.folder!r}")
        if ":" in self.folder:
            raise ValueError(f"expected folder to have no colon, as Kubernetes wants it; given {self.folder!r}")
        for name in ("namespace", "claim"):
            if (value := getattr(self, name)) and not _OBJECT_NAME.fullmatch(value):
                raise ValueError(f"expected {name} to be small letters, digits, - and .; given {value!r}")
        if self.memory and not re.fullmatch(_AMOUNT, self.memory):
            raise ValueError(f"expected memory to be as 32Gi or 32G; given {self.memory!r}")
        for text in self.env:
            if not NAME.fullmatch(text.partition("=")[0]) or "=" not in text:
                raise ValueError(f"expected env to be NAME=VALUE; given {text!r}")
        if host_options := _HOST_OPTIONS & {word.partition("=")[0] for text in self.run for word in shlex.split(text)}:
            raise ValueError(f"run takes no {min(host_options)}: the hosts are the workers of the job")
        if self.claim:  # `format_job` sets the variables of the run's folder, which is on the volume
            check_variables(text.partition("=")[0] for text in self.env)

    def complete(self, target: Sequence[str]) -> Kubernetes:
        # Only now the options are complete, while those of one source, such as the user's file, need no image. Without
        # `matex`, the image's own installation runs.
        if not self.image:
            raise ValueError("--kubernetes needs --image, of an image with matex_tf, TensorFlow, MPI, bash and sshd")
        return replace(super().complete(target), matex=self.matex)

    def add_variables(self, variables: Mapping[str, str]) -> Kubernetes:
        return replace(self, env=(*self.env, *(f"{name}={value}" for name, value in variables.items())))

    def name_folder(self, name: str) -> str:
        """The folder of the run `name`, as pods see it; "" without a volume."""
        return f"{self.folder.rstrip('/')}/{name}" if self.claim else ""


def format_job(options: Kubernetes, target: Sequence[str], name: str) -> str:
    """The MPIJob as YAML. `target`: the script and its arguments; `name`: the Kubernetes name (`make_name`)."""
    folder, note = options.name_folder(name), run_folder.format_note("kubernetes", name, options.namespace).strip()
    command = options.make_command(target, ["--hostfile", HOSTFILE])
    script = _format_script(command, options.setup, folder, note)
    variables = dict(text.split("=", 1) for text in options.env)
    if options.claim:
        state_variable, record_variable = FOLDER_VARIABLES
        variables |= {state_variable: f"{folder}/state", record_variable: folder}
    launcher: dict[str, Any] = {"command": ["bash", "-c", _escape_word(script)]}
    if variables:
        # An empty value is omitted, because a server of version 1.20 refuses "".
        launcher["env"] = [
            {"name": key, **({"value": _escape_word(value)} if value else {})} for key, value in variables.items()
        ]
    amounts = {"cpu": options.cpus, "memory": options.memory, "nvidia.com/gpu": str(options.gpus_per_node or "")}
    limits = {key: amount for key, amount in amounts.items() if amount}
    worker = {"resources": {"limits": limits}} if limits else {}
    run_policy: dict[str, Any] = {
        "cleanPodPolicy": "Running",
        # How often a failed launcher is replaced. Without a volume, a new one would have no state to resume from.
        "backoffLimit": options.restarts if options.claim else 0,
    }
    if options.time:
        run_policy["activeDeadlineSeconds"] = parse_time(options.time)
    # The annotation has the job's name as the user wrote it, for `kubectl describe`.
    metadata: dict[str, Any] = {"name": name, "annotations": {"matex-tf/name": options.name}}
    if options.namespace:
        metadata["namespace"] = options.namespace
    return dump_yaml(
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata,
            "spec": {
                "slotsPerWorker": options.ranks_per_node,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": run_policy,
                "mpiReplicaSpecs": {
                    "Launcher": _make_replicas(options, 1, "launcher", launcher),
                    "Worker": _make_replicas(options, options.nodes, "worker", worker),
                },
            },
        }
    )


def _make_replicas(options: Kubernetes, count: int, role: str, container_fields: dict[str, Any]) -> dict[str, Any]:
    """Pods of one role, with one container each."""
    container = {"name": role, "image": options.image, **container_fields}
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    if options.claim:
        container["volumeMounts"] = [{"name": "runs", "mountPath": options.folder}]
        pod["volumes"] = [{"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}}]
    # An Istio sidecar would outlive the launcher and prevent the end of the pod.
    template = {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}, "spec": pod}
    return {"replicas": count, "restartPolicy": _RESTART_POLICIES[role], "template": template}


# Launcher: another pod replaces a failed pod, at most `backoffLimit` times, and the failed pod keeps its exit code and
# output. With OnFailure, Kubernetes would restart the container in the same pod, even if `backoffLimit` is 0, and
# remove the pod at the limit. Worker: the container restarts in the same pod, where `--restarts` expects it.
_RESTART_POLICIES = {"launcher": "Never", "worker": "OnFailure"}


def _escape_word(word: str) -> str:
    """Escape a word of a container's command or environment: Kubernetes expands `$(NAME)`, and reads `$$` as `$`."""
    return word.replace("$", "$$")


def _format_script(command: Sequence[str], setup: Sequence[str], folder: str, note: str) -> str:
    """The script that runs `command` after the `setup` lines.

    `folder` is the folder of the run, "" without a volume; `note` identifies the job there.
    """
    folder_word = shlex.quote(folder)
    note_lines = _NOTE.format(at=folder_word, note=shlex.quote(note), file=run_folder.NOTE, code=os.EX_CANTCREAT)
    trap, run = shell_text.format_run(shlex.join(command), signal.SIGTERM)
    return _LAUNCHER_SCRIPT.format(
        setup="".join(f"{line}\n" for line in setup), note=note_lines if folder else "", over=shlex.quote(OVER),
        ended=f"{folder_word}/{run_folder.EXIT_CODE}" if folder else "", trap=trap, run=run, again=os.EX_TEMPFAIL,
    )  # fmt: skip


# - Kubernetes asks a launcher to end by SIGTERM. After a signal during `setup` the run does not start. Its exit code
#   EX_TEMPFAIL asks to be started again.
# - $ended is the file on the volume for the run's exit code; "" without a volume. With any code but EX_TEMPFAIL the run
#   is over, and the file keeps the code.
# - `tell` writes the termination message (`OVER`), which `matex follow` reads.
# - Kubernetes starts another launcher after any exit code but 0. A launcher that finds the file $ended, and so an ended
#   run, only repeats the exit code.
_LAUNCHER_SCRIPT = """\
ended={ended}
tell() {{ [ ! -w /dev/termination-log ] || echo {over} > /dev/termination-log; }}
{trap}[ ! -s "$ended" ] || {{ tell; exit $(cat "$ended"); }}
{note}{setup}[ -z "$asked" ] || exit {again}
{run}[ $code -eq {again} ] || [ -z "$ended" ] || {{ echo $code > "$ended" && tell; }}
exit $code
"""
# Writes the note of the run's folder. A volume that cannot be written ends the run.
_NOTE = """\
mkdir -p {at} && echo {note} > {at}/{file} || {{
echo "matex: $(hostname) cannot write {at}: is the volume of --claim full, or may $(id -un) not write there?" >&2
tell; exit {code}; }}
"""


def make_name(name: str) -> str:
    """A unique, valid Kubernetes name for a job."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MAX_STEM].strip("-")
    stem = stem if stem[:1].isalpha() else f"run-{stem}".strip("-")
    return f"{stem}-{''.join(secrets.choice(_ENDING_LETTERS) for _ in range(5))}"


def is_name(name: str) -> bool:
    """Whether `name` is a valid name of an MPIJob. It begins with a letter; Slurm's job ids are numbers."""
    return re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) is not None


def is_made(name: str) -> bool:
    """Whether `make_name` could have made this name."""
    return is_name(name) and re.fullmatch(rf".*-[{_ENDING_LETTERS}]{{5}}", name) is not None


class _Dumper(yaml.SafeDumper):
    """Quotes every string but plain keys: YAML parsers disagree about which words are numbers (1e3, 0o7, 1_000)."""

    def represent_mapping(self, *arguments: Any, **options: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*arguments, **options)
        for key, _ in node.value:
            key.style = None if key.value.isalnum() else key.style
        return node


def _represent_text(dumper: _Dumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else '"')


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: dict[str, Any]) -> str:
    """A YAML document of dicts, lists, strings, numbers and booleans. Multiline strings are block scalars."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=float("inf")))
