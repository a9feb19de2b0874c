"""A module without its MPI: one line of whoever is asked, and nothing is built that no run would find."""

from __future__ import annotations

import sys

import missing_mpi
import pytest

import launch

TASK = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "test-missing"}


@pytest.mark.parametrize("how", missing_mpi.SAID)
def test_a_module_without_its_mpi_is_told_in_one_line(tmp_path, how):
    (tmp_path / "train.py").write_text("print('trained')\n")
    folder = missing_mpi.write_package(tmp_path / "site", how)
    base = {"PYTHONPATH": str(folder), "MATEX_CACHE_DIR": str(tmp_path / "cache"), "MATEX_OPS_DIR": ""}
    commands = {
        "run": ("matex_tf.launch.cli", "run", "-n", "2", "train.py"),
        "build": ("matex_tf.launch.cli", "build", "--into", str(tmp_path / "ops")),
        "rank": ("matex_tf", "train.py"),
    }
    for name, words in commands.items():
        if words[0].endswith("cli"):
            program = ["-c", f"import sys; from {words[0]} import main; sys.exit(main())", *words[1:]]
        else:
            program = ["-m", *words]
        variables = base | (TASK | {"PMIX_NAMESPACE": f"{tmp_path.name}-{how}"} if name == "rank" else {})
        result = launch.execute([sys.executable, *program], launch.environment(variables), 240, cwd=tmp_path)
        assert result.returncode not in (0, None) and "trained" not in result.output, (name, result.output)
        assert missing_mpi.is_told(result.output, how), (name, result.output)
        assert "Traceback" not in result.output
        if name == "rank":
            assert "rank 1 of 2 on" in result.output
    assert not list(tmp_path.glob("**/*.so"))
