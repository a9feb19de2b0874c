"""What is refused of an MPIJob without a server: what a server refuses, or drops unsaid, or the operator refuses."""

from __future__ import annotations

import mpijobs
import pytest

from matex_tf.deploy import kubernetes

ASKED = kubernetes.Kubernetes(nodes=2, name="x", image="i:1", cpus="2", claim="c", time="5")


@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("slotsPerWorker: 1", 'slotsPerWorker: "two"', "spec.slotsPerWorker: 'two' is not of type 'integer'"),
        ('cpu: "2"', "cpu: [2]", "Worker.template.spec.containers.0.resources.limits.cpu: [2] is not valid"),
        ('cpu: "2"', 'cpu: "two"', "limits.cpu: 'two' does not match"),
        ("image:", "imgae:", "containers.0: Additional properties are not allowed ('imgae' was unexpected)"),
        ("mpiReplicaSpecs:", "replicas:", "spec: 'mpiReplicaSpecs' is a required property"),
        ("v2beta1", "v1", "apiVersion: 'kubeflow.org/v2beta1' was expected"),
        ('claimName: "c"', "claim: c", "persistentVolumeClaim: 'claimName' is a required property"),
        ("backoffLimit: 3", "backoffLimits: 3", "runPolicy: Additional properties are not allowed"),
        ("backoffLimit: 3", "backoffLimit: -1", "no number below 0"),
        ("    Worker:", "    Wroker:", "mpiReplicaSpecs: Launcher, Worker"),
        ('"WaitForWorkersReady"', "Whenever", "launcherCreationPolicy: AtStartup, WaitForWorkersReady"),
        ('cleanPodPolicy: "Running"', "cleanPodPolicy: Some", "cleanPodPolicy: None, Running, All"),
        ('restartPolicy: "Never"', "restartPolicy: Always", "restartPolicy: Never, OnFailure"),
        ("replicas: 1\n", "replicas: 2\n", "Launcher.replicas: 1"),
        ("replicas: 2\n", "replicas: 0\n", "Worker.replicas: at least 1"),
        ('name: "x-1"', f"name: {'x' * 55}", f"metadata.name: {'x' * 55}-worker-1 as a host"),
    ],
)  # fmt: skip
def test_a_broken_job_has_its_fault_named(old, new, fault):
    text = kubernetes.format_job(ASKED, ["x.py"], "x-1")
    assert old in text and mpijobs.find_faults(text) == []
    assert any(fault in each for each in mpijobs.find_faults(text.replace(old, new)))
