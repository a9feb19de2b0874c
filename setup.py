"""Where the packages lie: ops/ and readers/ stand beside matex_tf/ and install inside it."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {"matex_tf": "matex_tf", "matex_tf.ops": "ops", "matex_tf.readers": "readers"}
SOURCES = (".h", ".cc")
HERE = Path(__file__).parent


def packages() -> list[str]:
    """Every package of every folder, by the name it installs under."""
    names = []
    for name, folder in FOLDERS.items():
        names += [name, *(f"{name}.{inner}" for inner in find_packages(folder))]
    return names


def op_sources() -> list[str]:
    """The C++ sources, relative to ops/: the wheel carries them and the user's machine compiles them."""
    folder = HERE / FOLDERS["matex_tf.ops"]
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in SOURCES)


setup(
    packages=packages(),
    package_dir=FOLDERS,
    package_data={
        "matex_tf": ["py.typed"],
        "matex_tf.monitor.report": ["page.js", "uplot/*"],
        "matex_tf.ops": op_sources(),
    },
    include_package_data=False,  # else folders of C++ are taken for packages that are missing above
)
