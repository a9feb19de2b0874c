"""The package: what an sdist and its wheel carry, and that each kind of install finds every folder wherever it runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pages
import pytest
import yaml

import launch
from matex_tf.launch import probe
from matex_tf.version import __version__

ROOT = Path(__file__).parent.parent
FOLDERS = {"matex_tf": ROOT / "matex_tf", "matex_tf.ops": ROOT / "ops", "matex_tf.readers": ROOT / "readers"}
UNTRACKED = (
    ".git",
    ".venv*",
    "env",
    "*.egg-info",
    "build",
    "dist",
    "__pycache__",
    "*.pyc",
    "*.so",
    ".*_cache",
    "*.libs",
)
WHERE = (
    "from matex_tf.launch import cli; from matex_tf import ops, readers; "
    "print(ops.__file__, readers.__file__, cli.__file__)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of a copy of the checkout, the wheel made of that sdist, and what the builds printed."""
    copy = tmp_path_factory.mktemp("checkout") / "matex_tf"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*UNTRACKED))
    make = "from setuptools import build_meta; build_meta.build_sdist('out')"
    first = launch.execute([sys.executable, "-c", make], launch.environment(), 100, cwd=copy).check()
    (sdist,) = (copy / "out").glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", "out", sdist]
    second = launch.execute([*map(str, command)], launch.environment(), 200, cwd=copy).check()
    (wheel,) = (copy / "out").glob("*.whl")
    return sdist, wheel, first.stdout + first.stderr + second.stdout + second.stderr


@pytest.fixture
def wheel(built):
    return built[1]


def unpack_sdist(sdist, folder):
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.name.startswith("matex_tf"))
    return unpacked


def test_the_sdist_has_every_file_and_the_build_no_warnings_about_packages(built, tmp_path):
    """With its mode: its tests run scripts of it."""
    unpacked, copy = unpack_sdist(built[0], tmp_path), built[0].parent.parent
    made = {"out", "build", "matex_tf.egg-info"}
    files = [path for path in copy.rglob("*") if path.is_file() and path.relative_to(copy).parts[0] not in made]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:  # in a clone: without what a run has left there
        files = [copy / name for name in listed.stdout.splitlines() if (copy / name).is_file()]
    assert len(files) > 500
    for path in files:
        there = unpacked / path.relative_to(copy)
        assert there.read_bytes() == path.read_bytes() and (there.stat().st_mode ^ path.stat().st_mode) & 0o111 == 0
    assert "importable package" not in built[2] and "would be ignored" not in built[2]


@pytest.mark.more
def test_tests_run_from_the_sdist(built, tmp_path):
    unpacked = unpack_sdist(built[0], tmp_path)
    words = [
        "-m",
        "pytest",
        "-q",
        "tests/test_settings.py",
        "tests/ops/test_cache.py",
        "tests/launch/test_output_file.py",
    ]
    assert " passed" in launch.execute([sys.executable, *words], launch.environment(), 280, cwd=unpacked).check().stdout


def test_an_index_would_take_them(built):
    sdist, wheel, _ = map(str, built)
    for words in (
        ["twine", "check", "--strict", sdist, wheel],
        ["check_wheel_contents", wheel],
        ["pyroma", "-n", "10", sdist],
    ):
        launch.execute([sys.executable, "-m", *words], launch.environment(), 200).check()


def test_the_wheel_is_pure_python_and_of_this_version(wheel):
    assert wheel.name == f"matex_tf-{__version__}-py3-none-any.whl"


def test_the_wheel_carries_every_module_and_every_source(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in FOLDERS.items():
        for path in [*folder.rglob("*.py"), *folder.rglob("*.cc"), *folder.rglob("*.h")]:
            inside = f"{package.replace('.', '/')}/{path.relative_to(folder)}"
            assert inside in names, inside
    assert any(name.endswith("licenses/LICENSE") for name in names) and "matex_tf/py.typed" in names
    drawn_by = ("page.js", "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE")
    assert {f"matex_tf/monitor/report/{name}" for name in drawn_by} <= names
    assert not any(name.startswith(("tests/", "ops/", "readers/", "scripts/")) for name in names)


def test_an_ordinary_install_finds_every_folder(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = launch.environment({"PYTHONPATH": str(tmp_path / "site")})
    result = launch.execute([sys.executable, "-c", WHERE], environment, 120, cwd=tmp_path).check()
    assert all(path.startswith(str(tmp_path / "site" / "matex_tf")) for path in result.stdout.split()), result.stdout


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The bin folder of an environment with an ordinary install. Other packages are those of the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[1]]
    launch.execute([*map(str, install)], launch.environment(), 100).check()
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # read as a path: no .pth in there counts
    return folder / "bin"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What a user has cloned, beside the install."""
    folder = tmp_path_factory.mktemp("clone")
    for part in [*FOLDERS.values(), ROOT / "examples"]:
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def locate(python, cwd, words=("-c", WHERE), **variables):
    """The packages' files for the Python at `python` run in `cwd`."""
    result = launch.execute([str(python), *words], launch.environment(variables), 120, cwd=cwd).check()
    return [Path(path) for path in result.stdout.split()]


def list_files(matex_tf, ops, readers):
    return [ops / "__init__.py", readers / "__init__.py", matex_tf / "launch" / "cli.py"]


def test_in_a_clone_an_ordinary_install_trains(installed, clone):
    tools = f"{Path(launch.mpirun().path).parent}:{os.environ['PATH']}"
    # Installed beside mpi4py, as for a user, it would be found.
    mpi = {"MPI4PY_LIBMPI": probe.find_mpi_library()["path"]}
    environment = pages.find_environment(None, **mpi, PATH=f"{installed}:{tools}")
    info, training = pages.run_commands(list(pages.SHORT), clone, environment, 300).values()
    assert info.endswith("\nNothing is wrong.\n") and len(re.findall(r"(?m)^epoch \d  loss", training)) == 5


@pytest.mark.parametrize("kind", ["clone", "sdist"])
def test_python_in_a_checkout_has_all_of_the_checkout(installed, clone, built, tmp_path, kind):
    """Never half of it and half of what is installed; outside of it, what is installed."""
    folder = unpack_sdist(built[0], tmp_path) if kind == "sdist" else clone
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    whole = list_files(folder / "matex_tf", folder / "ops", folder / "readers")
    assert locate(installed / "python", folder) == whole
    assert locate(installed / "python", folder, ["-m", "matex_tf", str(script)]) == whole
    (inside,) = installed.parent.glob("lib/python*/site-packages/matex_tf")
    elsewhere = tmp_path if kind == "sdist" else clone / "examples"
    assert locate(installed / "python", elsewhere) == list_files(inside, inside / "ops", inside / "readers")


def test_a_link_to_the_package_of_a_checkout_is_the_checkout(installed, clone, tmp_path):
    (tmp_path / "matex_tf").symlink_to(clone / "matex_tf")
    paths = locate(installed / "python", tmp_path)
    assert paths == list_files(tmp_path / "matex_tf", clone / "ops", clone / "readers")


@pytest.mark.parametrize("inside", [True, False])
def test_unrelated_folders_of_these_names_are_not_taken_for_ours(installed, wheel, tmp_path, inside):
    """Neither beside an install nor beside a package that lacks its own."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for name in ("ops", "readers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('unrelated code has run')")
        if not inside:
            shutil.rmtree(tmp_path / "matex_tf" / name)
    if inside:
        package = tmp_path / "matex_tf"
        assert locate(installed / "python", tmp_path) == list_files(package, package / "ops", package / "readers")
    else:
        words = [str(installed / "python"), "-c", "from matex_tf import readers"]
        result = launch.execute(words, launch.environment(), 120, cwd=tmp_path)
        assert result.returncode == 1 and "unrelated code has run" not in result.output


def test_the_install_under_test_is_this_checkout(tmp_path):
    result = launch.execute([sys.executable, "-c", WHERE], launch.environment(), 120, cwd=tmp_path).check()
    expected = [ROOT / "ops" / "__init__.py", ROOT / "readers" / "__init__.py", ROOT / "matex_tf" / "launch" / "cli.py"]
    assert [Path(path).resolve() for path in result.stdout.split()] == [path.resolve() for path in expected]


def test_the_version_is_written_in_one_place():
    """And beside it where readers of other files look for it."""
    text = "".join((ROOT / name).read_text() for name in ("pyproject.toml", "setup.py", "README.md"))
    assert __version__ not in text
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())[0] == __version__
    command = str(Path(sys.executable).with_name("matex"))
    result = launch.execute([command, "--version"], launch.environment(), 60).check()
    assert result.stdout.split() == ["matex_tf", __version__]


def test_the_addresses_of_the_project_are_written_in_one_place():
    """Today placeholders; who publishes a release sets them there."""
    home = re.findall(r'(?m)^Homepage = "(.*)"', (ROOT / "pyproject.toml").read_text())
    pages = [ROOT / "CITATION.cff", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert len(home) == 1 and not [path for path in pages if path.is_file() and home[0] in path.read_text()]


def test_the_easyconfig_is_of_this_version():
    """And of the project's address, which it cannot read from pyproject.toml."""
    text = (ROOT / "packaging" / "matex_tf.eb").read_text()
    (home,) = re.findall(r'(?m)^Homepage = "(.*)"', (ROOT / "pyproject.toml").read_text())
    assert f"\nversion = '{__version__}'\n" in text and f"\nhomepage = '{home}'\n" in text


@pytest.mark.parametrize(
    "version", re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text())[1:], ids=lambda one: one.split()[0]
)
def test_the_changes_of_a_version_are_short(version):
    assert len(version.split()) <= 400


def test_a_public_forge_runs_the_tests_of_this_one():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"].values()
    (command,) = (step["run"] for step in job["steps"] if "run" in step)
    assert os.access(ROOT / command, os.X_OK)
