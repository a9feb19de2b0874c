"""Where the packages lie: ops/ and readers/ are rooms beside matex_tf/ that install inside it."""

from pathlib import Path

from setuptools import find_packages, setup

ROOMS = {"matex_tf": "matex_tf", "matex_tf.ops": "ops", "matex_tf.readers": "readers"}
SOURCES = (".h", ".cc")
HERE = Path(__file__).parent


def packages() -> list[str]:
    """Every package of every room, by the name it installs under."""
    names = []
    for name, folder in ROOMS.items():
        names += [name, *(f"{name}.{inner}" for inner in find_packages(folder))]
    return names


def op_sources() -> list[str]:
    """The C++ sources, relative to ops/: the wheel carries them and the user's machine compiles them."""
    room = HERE / ROOMS["matex_tf.ops"]
    return sorted(str(path.relative_to(room)) for path in room.rglob("*") if path.suffix in SOURCES)


setup(packages=packages(), package_dir=ROOMS, package_data={"matex_tf": ["py.typed"], "matex_tf.ops": op_sources()})
