"""A real Kubernetes API server that knows MPIJobs, while in a context: kube-apiserver over etcd.

Kubernetes' own controller makes the pods of a batch Job. Nothing else takes up what is created there: a test plays the
MPI operator and the node, makes pods, writes the status of jobs and pods, and says what containers print.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpijobs

PATIENCE = 120.0  # seconds for the server to become ready
TOKEN = "of-this-test"


def binaries() -> Path:
    """Where kube-apiserver and etcd are: as for others' tests, or where scripts/build_kubernetes puts them."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("KUBEBUILDER_ASSETS") or Path(cache, "matex_tf-kubernetes"))


def missing() -> list[str]:
    """What of it this machine lacks."""
    lacks = [
        name
        for name in ("kube-apiserver", "kube-controller-manager", "etcd")
        if not os.access(binaries() / name, os.X_OK)
    ]
    return lacks + [name for name in ("kubectl", "openssl") if shutil.which(name) is None]


class ApiServer:
    """The server; `environment` lets `kubectl` reach it. What they need and write is in `folder`.

    `printed` is what the containers of pods print, by the pod's name.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._children: list[subprocess.Popen[bytes]] = []
        self.printed: dict[str, str] = {}
        self.environment = {"KUBECONFIG": str(folder / "config"), "HOME": str(folder)}

    def __enter__(self) -> ApiServer:
        store, peers, port = _free_ports(3)
        store_url, peers_url = (f"http://127.0.0.1:{each}" for each in (store, peers))
        self._url = f"https://127.0.0.1:{port}"
        key, certificate = self._folder / "key", self._folder / "certificate"
        words = "req -x509 -newkey rsa:2048 -nodes -subj /CN=node".split()
        subprocess.run(["openssl", *words, "-out", certificate, "-keyout", key], check=True, capture_output=True)
        self._node = _node(self.printed, certificate, key)
        (self._folder / "tokens").write_text(f"{TOKEN},admin,admin,system:masters\nanother,ann,ann\n")
        (self._folder / "config").write_text(json.dumps(_config(self._url)))
        try:
            self._start(
                "etcd", f"--data-dir={self._folder}/data", f"--listen-client-urls={store_url}",
                f"--advertise-client-urls={store_url}", f"--listen-peer-urls={peers_url}",
            )  # fmt: skip
            self._start(
                "kube-apiserver", f"--etcd-servers={store_url}", f"--cert-dir={self._folder}/certificates",
                f"--secure-port={port}", "--bind-address=127.0.0.1", f"--token-auth-file={self._folder}/tokens",
                "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount",
            )  # fmt: skip
            self._wait(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", "ready")
            self._start(
                "kube-controller-manager", "--controllers=job", f"--kubeconfig={self._folder}/config",
                "--leader-elect=false", "--port=0", "--secure-port=0",
            )  # fmt: skip
            self.create(mpijobs.make_definition())
            # kubectl compares what it sends with this description, too.
            self._wait(lambda: "v2beta1.MPIJob" in self.describe_objects(), "with MPIJobs")
            self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
            port = {"kubeletEndpoint": {"Port": self._node.server_port}}
            address = [{"type": "InternalIP", "address": "127.0.0.1"}]
            self.write_status("/api/v1/nodes/node", {"addresses": address, "daemonEndpoints": port})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._node.shutdown()
        self._node.server_close()
        for child in reversed(self._children):
            child.terminate()
            child.wait()

    def _start(self, name: str, *words: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(binaries() / name), *words]
            self._children.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder)
            )

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        end, said = time.monotonic() + PATIENCE, ""
        while True:
            try:
                if ready():
                    return
            except subprocess.CalledProcessError as error:
                said = error.stderr
            if time.monotonic() > end or any(child.poll() is not None for child in self._children):
                log = (self._folder / "kube-apiserver.log").read_text()[-2000:]
                raise RuntimeError(f"the server is not {what}: {said}\n{log}")
            time.sleep(0.2)

    def describe_objects(self) -> str:
        """What the server says of all kinds of objects that it knows."""
        return self.kubectl("get", "--raw", "/openapi/v2")

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """What kubectl prints. Raises CalledProcessError."""
        return subprocess.run(
            ["kubectl", *words],
            input=given,
            text=True,
            capture_output=True,
            check=True,
            env={**os.environ, **self.environment},
            timeout=60,
        ).stdout

    def create(self, what: dict[str, Any]) -> None:
        """An object. Sent by `create`: the definition would be too long for the note that `apply` makes."""
        self.kubectl("create", "--validate=false", "-f", "-", given=json.dumps(what))

    def get(self, *words: str) -> dict[str, Any]:
        """An object as the server has it."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def write_status(self, path: str, status: dict[str, Any]) -> None:
        """Merge `status` into that of the object at `path`, as operators and kubelets do, who may write it alone."""
        trust = ssl._create_unverified_context()
        request = urllib.request.Request(
            f"{self._url}{path}/status",
            data=json.dumps({"status": status}).encode(),
            method="PATCH",
            headers={"Content-Type": "application/merge-patch+json", "Authorization": f"Bearer {TOKEN}"},
        )
        urllib.request.urlopen(request, context=trust, timeout=60).close()


def _node(printed: dict[str, str], certificate: Path, key: Path) -> http.server.ThreadingHTTPServer:
    """A node, as far as the server asks it for what containers print."""

    class Kubelet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pod = self.path.split("/")[3]  # /containerLogs/NAMESPACE/POD/CONTAINER
            self.send_response(200)
            self.end_headers()
            self.wfile.write(printed.get(pod, "").encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _config(url: str) -> dict[str, Any]:
    contexts = {"admin": TOKEN, "ann": "another", "expired": "no-token-of-this-server"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin",
        "clusters": [{"name": "test", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": name, "user": {"token": token}} for name, token in contexts.items()],
        "contexts": [{"name": name, "context": {"cluster": "test", "user": name}} for name in contexts],
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
