"""The pages that a newcomer follows, and a shell in which their commands are typed."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/quickstart.md", "docs/guide.md")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(git|pip|python3?|source|matex|mpirun|srun|scripts/\w+)(?: |$)")
SETTING = re.compile(r"[A-Z_]+=\S+ ")

ELSEWHERE = {
    "git clone <this repository> matex_tf && cd matex_tf": "done before",
    "python train.py": "a picture of the idea, as the next one",
    "mpirun -n 16 python -m matex_tf train.py": "16 cores",
    "pip install mpi4py .": "a cluster whose MPI is loaded",
    "mpirun python -m matex_tf train.py": "an allocation",
    "srun --mpi=pmix python -m matex_tf train.py": "Slurm",
    "srun --mpi=pmix -n 64 python -m matex_tf train.py": "Slurm",
}
"""What does not run on any machine, and what it needs. It is here so that each new command is decided on."""
SHORT = ("matex info", "matex run -n 2 examples/mnist_keras.py --epochs 5")
"""What the usual run tests; --all runs everything, from the first installation on."""


def list_blocks(page: str) -> list[str]:
    """The indented blocks of a page."""
    text = (ROOT / page).read_text()
    return [textwrap.dedent(found).strip("\n") for found in re.findall(r"(?m)(?<=\n\n)(?: {4,}.*\n|\n(?= {4}))+", text)]


def is_python(block: str) -> bool:
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def list_commands(page: str) -> list[str]:
    """The commands of a page in their order, without what is said of them."""
    lines = [line for block in list_blocks(page) for line in block.splitlines() if COMMAND.match(line)]
    return [re.split(r"\s+#", line)[0].strip() for line in lines]


def make_clone(folder: Path) -> Path:
    """A fresh clone of this checkout, with what is not committed yet, and a script of one's own in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout to clone")
    git = ["git", "-C", str(ROOT)]
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    changed = subprocess.run(
        [*git, "ls-files", "--modified", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
    )
    for name in changed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        else:
            (folder / name).unlink()
    (folder / "train.py").symlink_to("examples/mnist_keras.py")
    (folder / "data").symlink_to("examples/data")
    (folder / "hosts").write_text("localhost slots=64\n")
    return folder


def run_commands(commands: list[str], cwd: Path, environment: dict[str, str], timeout: float) -> dict[str, str]:
    """What each of `commands` says, typed one after the other into one shell, that ends at the first that fails."""
    lines = ["set -e"]
    for number, command in enumerate(commands):
        lines += [f"echo '@@@ {number}'; echo '@@@ {number}' >&2", command]
    done = launch.execute(["bash", "-c", "\n".join(lines)], environment, timeout, cwd=cwd)
    parts = re.split(r"(?m)^@@@ \d+\n", done.stdout)[1:]
    assert done.returncode == 0, f"{commands[len(parts) - 1]}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return dict(zip(commands, parts))


def change_command(command: str, away: Path) -> str:
    """`command` where there are no 64 cores and no administrator."""
    if " -n 64 " in command:
        command = command.replace("matex run", "matex run --dry-run")
    return command.replace("<this repository>", str(ROOT)).replace("/opt/", f"{away}/")


def find_environment(home: Path | None, **more: str | None) -> dict[str, str]:
    """That of a user, with an empty `home` if any, who is not root, and on whose machine there are cores enough."""
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpi["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    if home is not None:
        home.mkdir(exist_ok=True)
        more = {"HOME": str(home), "XDG_CACHE_HOME": None, "MATEX_CACHE_DIR": None, **more}
    return launch.environment({"VIRTUAL_ENV": None, **mpi, **more})
