"""What the real `kubectl` reads of an MPIJob, and sends: to a server of this test, which answers as Kubernetes does."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import shutil
import subprocess
import threading

import pytest

from matex_tf.deploy import kubernetes

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="the real kubectl is needed: there is none")
GROUP = "kubeflow.org/v2beta1"
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": "kubeflow.org",
                "versions": [{"groupVersion": GROUP, "version": "v2beta1"}],
                "preferredVersion": {"groupVersion": GROUP, "version": "v2beta1"},
            }
        ],
    },
    f"/apis/{GROUP}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP,
        "resources": [
            {"name": "mpijobs", "singularName": "mpijob", "namespaced": True, "kind": "MPIJob", "verbs": ["create"]}
        ],
    },
}  # fmt: skip


class Server(http.server.BaseHTTPRequestHandler):
    """Knows one kind of object, and keeps what it was sent."""

    sent: list[dict] = []

    def answer(self, code, data):
        text = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        found = ANSWERS.get(self.path.partition("?")[0])
        self.answer(200 if found else 404, found or {"kind": "Status", "status": "Failure", "code": 404})

    def do_POST(self):
        self.sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(201, self.sent[-1])

    def log_message(self, *_):
        """Nothing."""


def test_kubectl_reads_the_words_that_were_typed(tmp_path):
    words = [
        "two words",
        'it\'s "q"',
        "new\nline\ttab",
        "$HOME $(HOME)",
        "a: b # c",
        "\x01\x7f\x85\u2028é😀",
        "- x",
        "",
    ]
    asked = kubernetes.Kubernetes(nodes=2, name="my: job", image="i", claim="c", env=("A=1: $x",), time="5")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            command = [
                "kubectl",
                f"--server=http://127.0.0.1:{server.server_port}",
                f"--cache-dir={tmp_path}",
                "create",
            ]
            environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
            text = kubernetes.format_job(asked, words, "job-1")
            command += ["--validate=false", "-f", "-"]
            result = subprocess.run(command, input=text, text=True, capture_output=True, env=environment, timeout=60)
        finally:
            server.shutdown()
    assert result.returncode == 0, result.stderr
    (sent,) = Server.sent
    launcher = sent["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert f" {shlex.join(words)} & child=$!\n" in launcher["command"][-1].replace("$$", "$")
    assert launcher["env"][0] == {"name": "A", "value": "1: $$x"}
    assert sent["metadata"]["annotations"] == {"matex-tf/name": "my: job"}
    assert sent["spec"]["runPolicy"]["activeDeadlineSeconds"] == 300
