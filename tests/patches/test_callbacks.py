"""Callbacks see the same on all ranks and decide alike; what is fetched or sent over the network is so once."""

import http.server
import io
import json
import threading
from pathlib import Path

import numpy as np
import pytest

import launch

CASE = Path(__file__).with_name("callback_case.py")


@pytest.fixture
def server():
    """(its address, the requests that came) of a server of one data set that takes what is posted to it."""
    requests = []
    stored = io.BytesIO()
    np.savez(stored, x=np.arange(4))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(stored.getvalue())

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(b"")

        def answer(self, body):
            requests.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    here = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=here.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{here.server_port}", requests
    here.shutdown()
    here.server_close()


def differences(one, other, where=""):
    """Where two structures of figures differ by more than 1e-9, or 1e-6 relative to large ones, or in anything else."""
    if isinstance(one, dict) and isinstance(other, dict) and sorted(one) == sorted(other):
        return [found for key in one for found in differences(one[key], other[key], f"{where} {key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for index, pair in enumerate(zip(one, other)) for found in differences(*pair, f"{where} {index}")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if np.isclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True) else [f"{where}: {one} {other}"]
    return [] if one == other else [f"{where}: {one} {other}"]


@pytest.mark.timeout(400)
@pytest.mark.more
@pytest.mark.parametrize("ranks, legacy", [(3, "0"), (2, "1")])
def test_every_rank_sees_and_decides_what_the_script_alone_does(tmp_path, server, ranks, legacy):
    url, requests = server
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASE, alone, url, env=keras).check()
    sequential, requests[:] = list(requests), []
    result = launch.run(ranks, CASE, together, url, env=keras, timeout=200).check()
    assert sorted(requests) == sorted(sequential)
    assert "a callback stopped training on rank 1 and not on every rank" in result.stderr
    want = json.loads((alone / "rank-0.json").read_text())
    assert 1 < want["early"]["epochs"] < 20 and want["nan"]["epochs"] < 6 and want["stop in an epoch"]["epochs"] == 1
    assert not differences(want, json.loads((together / "rank-0.json").read_text()))


@pytest.mark.timeout(400)
def test_all_ranks_see_the_same(tmp_path, server):
    launch.run(2, CASE, tmp_path, server[0], env=launch.ALL_FILES, timeout=200).check()
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert json.dumps(first) == json.dumps(second)


RESTART = CASE.with_name("restart_case.py")


def losses(result):
    (line,) = [line for line in result.check().stdout.splitlines() if line.startswith("LOSSES")]
    return json.loads(line[6:])


@pytest.mark.timeout(400)
@pytest.mark.more
@pytest.mark.parametrize("style", ["fit", "loop"])
def test_a_killed_run_goes_on_with_another_number_of_ranks(tmp_path, style):
    want = losses(launch.run_alone(RESTART, tmp_path / "alone", style))
    assert launch.run(3, RESTART, tmp_path, style, 2).returncode != 0
    found = losses(launch.run(2, RESTART, tmp_path, style))
    assert sorted(want) == list("012345") and sorted(found) == list("2345")
    assert not differences(found, {epoch: want[epoch] for epoch in found})
