"""The package: what an sdist and its wheel carry, and that ordinary and editable installs find every folder."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import launch
from matex_tf.version import __version__

ROOT = Path(__file__).parent.parent
FOLDERS = {"matex_tf": ROOT / "matex_tf", "matex_tf.ops": ROOT / "ops", "matex_tf.readers": ROOT / "readers"}
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff")
WHERE = (
    "from matex_tf.launch import cli; from matex_tf import ops, readers; "
    "print(ops.__file__, readers.__file__, cli.__file__)"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of a copy of the checkout, the wheel made of that sdist, and what the builds printed."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for folder in [*FOLDERS.values(), ROOT / "tests"]:
        shutil.copytree(folder, copy / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
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


def test_the_sdist_has_no_tests_and_the_build_no_warnings_about_packages(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "ops/src/engine/abi.cc"} <= names
    assert not any(name.startswith("tests") for name in names), "they cannot run without scripts/ and examples/"
    assert "importable package" not in built[2] and "would be ignored" not in built[2]


def test_the_wheel_is_pure_python_and_of_this_version(wheel):
    assert wheel.name == f"matex_tf-{__version__}-py3-none-any.whl"


def test_the_wheel_carries_every_module_and_every_source(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in FOLDERS.items():
        for path in [*folder.rglob("*.py"), *folder.rglob("*.cc"), *folder.rglob("*.h")]:
            inside = f"{package.replace('.', '/')}/{path.relative_to(folder)}"
            assert inside in names, inside
    assert any(name.endswith("licenses/LICENSE") for name in names) and "matex_tf/py.typed" in names
    assert not any(name.startswith(("tests/", "ops/", "readers/", "scripts/")) for name in names)


def test_an_ordinary_install_finds_every_folder(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = launch.environment({"PYTHONPATH": str(tmp_path / "site")})
    result = launch.execute([sys.executable, "-c", WHERE], environment, 120, cwd=tmp_path).check()
    assert all(path.startswith(str(tmp_path / "site" / "matex_tf")) for path in result.stdout.split()), result.stdout


def test_the_install_under_test_is_this_checkout(tmp_path):
    result = launch.execute([sys.executable, "-c", WHERE], launch.environment(), 120, cwd=tmp_path).check()
    expected = [ROOT / "ops" / "__init__.py", ROOT / "readers" / "__init__.py", ROOT / "matex_tf" / "launch" / "cli.py"]
    assert [Path(path).resolve() for path in result.stdout.split()] == [path.resolve() for path in expected]


def test_the_version_is_written_in_one_place():
    text = "".join((ROOT / name).read_text() for name in ("pyproject.toml", "setup.py"))
    assert __version__ not in text
    command = str(Path(sys.executable).with_name("matex"))
    result = launch.execute([command, "--version"], launch.environment(), 60).check()
    assert result.stdout.split() == ["matex_tf", __version__]
