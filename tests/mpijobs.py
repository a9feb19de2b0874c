"""What an MPIJob of kubeflow.org/v2beta1 may be: the definition for a server, and the same checked without one.

The operator's own file is in no package, and is not kept here. Its members are those of the types from which it is made
(pkg/apis/kubeflow/v2beta1/types.go of https://github.com/kubeflow/mpi-operator, read in the version that has managedBy
and MPICH): names, types, defaults, what is required, enums. Each was compared by eye. The folder of keys has a default,
which only the operator reads, and none here. Its pods are core/v1's.

Pods are in mpijob_pods.json: what kube-apiserver 1.20.2, as scripts/build_kubernetes makes it, says of them, less the
descriptions (Kubernetes, Apache-2.0). `python tests/mpijobs.py < DESCRIPTION` makes it anew, of /openapi/v2.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

PODS = Path(__file__).with_name("mpijob_pods.json")
_POD = "io.k8s.api.core.v1.PodSpec"

_TEXT, _NUMBER, _TIME = (
    {"type": "string"},
    {"type": "integer", "format": "int32"},
    {"type": "integer", "format": "int64"},
)
_WHEN = {**_TEXT, "format": "date-time"}
_FIGURES = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_WORD_OR_NUMBER = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, _TEXT]}
_QUANTITY = {
    **_WORD_OR_NUMBER,
    "pattern": rf"^(\+|-)?{_FIGURES}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_FIGURES}))?$",
}
_KEPT = ("type", "format", "required", "enum", "$ref")


def make_definition() -> dict[str, Any]:
    """The CustomResourceDefinition, as a server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "mpijobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"kind": "MPIJob", "listKind": "MPIJobList", "plural": "mpijobs", "singular": "mpijob"},
            "versions": [
                {
                    "name": "v2beta1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": _make_schema()},
                }
            ],
        },
    }


def find_faults(text: str) -> list[str]:
    """What an operator's cluster would refuse of the job in this YAML, or drop unsaid: the place, and why."""
    job = yaml.safe_load(text)
    faults = [
        f"{'.'.join(str(part) for part in each.absolute_path)}: {each.message}"
        for each in _make_validator().iter_errors(job)
    ]
    return faults or _ask_the_operator(job)


@functools.cache
def _make_validator() -> jsonschema.Draft7Validator:
    schema = _close(_make_schema())
    # A server checks these of any object, whatever its definition says of them.
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["apiVersion"] = {"const": "kubeflow.org/v2beta1"}
    schema["properties"]["kind"] = {"const": "MPIJob"}
    schema["properties"]["metadata"] = _close(_object(("name",), **_names(_TEXT)))
    return jsonschema.Draft7Validator(schema)


def _ask_the_operator(job: dict[str, Any]) -> list[str]:
    """What the operator refuses of jobs that a server takes (pkg/apis/kubeflow/validation)."""
    spec, replicas = job["spec"], job["spec"]["mpiReplicaSpecs"]
    count = replicas.get("Worker", {}).get("replicas", 1)
    host = f"{job['metadata']['name']}-worker-{max(count - 1, 0)}"
    policy = spec.get("runPolicy", {})
    allowed = {
        "mpiReplicaSpecs: Launcher, Worker": "Launcher" in replicas and replicas.keys() <= {"Launcher", "Worker"},
        "Launcher.replicas: 1": replicas.get("Launcher", {}).get("replicas", 1) == 1,
        "Worker.replicas: at least 1": count >= 1,
        "restartPolicy: Never, OnFailure": all(
            each.get("restartPolicy", "Never") in ("Never", "OnFailure") for each in replicas.values()
        ),
        "containers: at least one": all(
            each.get("template", {}).get("spec", {}).get("containers") for each in replicas.values()
        ),
        "cleanPodPolicy: None, Running, All": policy.get("cleanPodPolicy", "None") in ("None", "Running", "All"),
        "launcherCreationPolicy: AtStartup, WaitForWorkersReady": spec.get("launcherCreationPolicy", "AtStartup")
        in ("AtStartup", "WaitForWorkersReady"),
        "no number below 0": not any(isinstance(each, int) and each < 0 for each in (*spec.values(), *policy.values())),
        f"metadata.name: {host} as a host": bool(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", host)),
    }
    return [what for what, holds in allowed.items() if not holds]


def _object(required: tuple[str, ...] = (), **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, **({"required": [*required]} if required else {})}


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _map(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def _names(text: dict[str, Any]) -> dict[str, Any]:
    """The members of an object's metadata that a user writes."""
    return {
        "annotations": _map(text), "finalizers": _list(text), "labels": _map(text), "name": text, "namespace": text,
    }  # fmt: skip


def _make_schema() -> dict[str, Any]:
    definitions = json.loads(PODS.read_text())
    template = _object(metadata=_object(**_names(_TEXT)), spec=_inline({"$ref": f"/{_POD}"}, definitions))
    scheduling = _object(
        minAvailable=_NUMBER, queue=_TEXT, minResources=_map(_QUANTITY), priorityClass=_TEXT,
        scheduleTimeoutSeconds=_NUMBER,
    )  # fmt: skip
    policy = _object(
        cleanPodPolicy=_TEXT, ttlSecondsAfterFinished=_NUMBER, activeDeadlineSeconds=_TIME, backoffLimit=_NUMBER,
        schedulingPolicy=scheduling, suspend={"type": "boolean", "default": False}, managedBy=_TEXT,
    )  # fmt: skip
    spec = _object(
        ("mpiReplicaSpecs",),
        slotsPerWorker={**_NUMBER, "default": 1},
        runLauncherAsWorker={"type": "boolean", "default": False},
        runPolicy=policy,
        mpiReplicaSpecs=_map(_object(replicas=_NUMBER, restartPolicy=_TEXT, template=template)),
        sshAuthMountPath=_TEXT,
        launcherCreationPolicy={**_TEXT, "default": "AtStartup"},
        mpiImplementation={**_TEXT, "enum": ["OpenMPI", "Intel", "MPICH"], "default": "OpenMPI"},
    )
    condition = _object(
        ("status", "type"), type=_TEXT, status={**_TEXT, "enum": ["True", "False", "Unknown"]}, reason=_TEXT,
        message=_TEXT, lastUpdateTime=_WHEN, lastTransitionTime=_WHEN,
    )  # fmt: skip
    expression = _object(("key", "operator"), key=_TEXT, operator=_TEXT, values=_list(_TEXT))
    counts = _object(
        active=_NUMBER, succeeded=_NUMBER, failed=_NUMBER, selector=_TEXT,
        labelSelector=_object(matchExpressions=_list(expression), matchLabels=_map(_TEXT)),
    )  # fmt: skip
    by_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    status = _object(
        conditions=_list(condition, **by_type), replicaStatuses=_map(counts),
        startTime=_WHEN, completionTime=_WHEN, lastReconcileTime=_WHEN,
    )  # fmt: skip
    return _object(apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, status=status)


def _inline(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A description without references, as definitions of resources have to have it."""
    if reference := node.get("$ref"):
        name = reference.rpartition("/")[2]
        if name.endswith(".Quantity"):
            return _QUANTITY
        return _WORD_OR_NUMBER if name.endswith(".IntOrString") else _inline(definitions[name], definitions)
    found = _map_parts(node, lambda part: _inline(part, definitions))
    if found.get("type") == "object" and not found.keys() & {"properties", "additionalProperties"}:
        found["x-kubernetes-preserve-unknown-fields"] = True
    return found


def _close(node: dict[str, Any]) -> dict[str, Any]:
    """A description that refuses what it does not name, which a server drops unsaid."""
    closed = {**node, **_map_parts(node, _close)}
    return {**closed, "additionalProperties": False} if "properties" in node else closed


def _map_parts(node: dict[str, Any], change: Any) -> dict[str, Any]:
    """What is kept of a description, with `change` done to each description within it."""
    found = {each: node[each] for each in _KEPT if each in node}
    if "properties" in node:
        found["properties"] = {name: change(part) for name, part in node["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(node.get(name), dict):
            found[name] = change(node[name])
    return found


def describe_pods(described: dict[str, Any]) -> str:
    """The text of mpijob_pods.json: pods, of what a server says of all kinds of objects that it knows."""
    found: dict[str, dict[str, Any]] = {}

    def shorten(node: dict[str, Any]) -> dict[str, Any]:
        if reference := node.get("$ref"):
            visit(reference.rpartition("/")[2])
        return _map_parts(node, shorten)

    def visit(name: str) -> None:
        if name not in found:
            found[name] = {}
            found[name] = shorten(described["definitions"][name])

    visit(_POD)
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found))
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PODS.write_text(describe_pods(json.load(sys.stdin)))
