"""Builds three libraries: the engine, the TensorFlow ops over it, and their XLA kernels.

There are three, because ranks need the engine before a script imports TensorFlow, and because the XLA kernels take
longest to compile and few scripts need them. A `Plan` describes a library. Its key, a hash of the versions of
TensorFlow, MPI and the source, is part of the library's file name. So each combination of versions is built once, and
kept in a folder (`cache.py`). `library.py`, `xla.py` and `matex build` call this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from matex_tf import errors
from matex_tf.lazy import tf
from matex_tf.version import OLDEST_TENSORFLOW, __version__

from . import build_lock, cache, trust
from . import compiler as compilers

SOURCE = Path(__file__).parent / "src"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX")
# Turns off the debug checks in TensorFlow's headers: they call functions that its libraries lack.
_XLA_FLAGS = ("-DNDEBUG",)
_XLA_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")  # folders of headers that XLA's include
_XLA_LIBRARY = "libtensorflow_cc.so.2"
_MAX_BUILD_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A library that is built, or is to be built."""

    what: str  # its name in messages
    seconds: int  # how long the build takes, for messages
    folders: tuple[str, ...]  # the folders of `SOURCE` with its files
    mpi: str  # the version text of the MPI
    tensorflow: str  # "": the library does not use TensorFlow
    options: tuple[str, ...]  # of the compiler
    key: str  # a hash of all inputs of the build, without folders
    linked: Plan | None = None  # the library that it links

    @property
    def facts(self) -> dict[str, str]:
        """The versions that the library is for, as shown to users and stored in its record."""
        facts = {"machine": platform.machine(), "matex_tf": f"{__version__} ({hash_sources()[:8]})", "MPI": self.mpi}
        return facts | ({"TensorFlow": self.tensorflow} if self.tensorflow else {})

    @property
    def library(self) -> str:
        """The library's file name."""
        return f"{self.key}.so"


def build_ops(verbose: bool = False, engine: Plan | None = None, into: Path | None = None) -> Path:
    """The compiled ops for this TensorFlow and MPI; built now (about 15 s), with the engine, if no folder has them.

    Args:
        verbose: also print a message if no build is necessary, and the compiler's command.
        engine: the plan of the engine, if it is known.
        into: the folder that is to contain the libraries.

    Raises:
        BuildError: there is no compiler, no MPI or no usable folder, or the compiler reports errors.
    """
    engine = engine or make_engine_plan()
    ensure_library(engine, verbose, into)
    return ensure_library(make_plan(engine), verbose, into)


def build_xla(verbose: bool = False, into: Path | None = None) -> Path:
    """The kernels with which XLA compiles functions that contain the ops; builds the ops, too.

    Raises:
        BuildError: as in `build_ops`; or this TensorFlow lacks the library or the headers.
    """
    build_ops(verbose, into=into)
    return ensure_library(make_xla_plan(), verbose, into)


def ensure_library(plan: Plan, verbose: bool = False, into: Path | None = None) -> Path:
    """The library of `plan`; built now if no folder has it, or if `into` lacks it. Raises as `build_ops`."""
    built_library = find_library(plan, into)
    if built_library is not None:
        if verbose:
            cache.print_message(f"built already: {plan.what} for {_describe_versions(plan)}")
        return built_library
    folder = into or cache.find_cache_folder()
    with build_lock.take_turn(folder, plan.key, plan.what, lambda: is_whole(plan, folder)) as should_build:
        if should_build:  # False: another process has built it meanwhile
            # `find_others` also reports the builds for other versions with a missing compiler. With `into` a user has
            # asked for this build, whatever others there are.
            with find_others(plan) if into is None else contextlib.nullcontext("") as message:
                compiler = find_compiler()
            if message:
                cache.print_message(message)
            _compile_plan(plan, compiler, folder, verbose, into)
    return folder / plan.library


def find_library(plan: Plan, into: Path | None = None) -> Path | None:
    """The library of `plan` in the folder `into`; without `into`, in the folder for all users or one of this user's own
    folders. None if it is not built there.

    Raises:
        BuildError: the folder for all users has it, but an untrusted user could have written to it.
    """
    if into is not None:
        return into / plan.library if is_whole(plan, into) else None
    shared_folder = cache.find_shared_folder()
    if shared_folder is not None:
        for path in (shared_folder / plan.library, _name_record(plan, shared_folder)):
            if path.exists():
                cache.require_trust(path)
    folders = [*([shared_folder] if shared_folder is not None else []), *cache.list_own_folders()]
    return next((folder / plan.library for folder in folders if is_whole(plan, folder)), None)


@contextlib.contextmanager
def find_others(plan: Plan) -> Iterator[str]:
    """A context that yields the sentence of `describe_others` and puts it before the message of a BuildError within it.

    Both together explain why there is no library: the folder for all users has only builds for other versions, and this
    process cannot build one, for example without a compiler.
    """
    message = describe_others(plan)
    try:
        yield message
    except errors.BuildError as error:
        raise errors.BuildError(f"{message}. Here {error}" if message else str(error)) from error


def describe_others(plan: Plan) -> str:
    """A sentence for users if the folder for all users has libraries of this kind, but none for this run: what was
    expected, what was found, and the remedy. "" if the folder has none at all, or does not exist.
    """
    shared_folder = cache.find_shared_folder()
    builds = [] if shared_folder is None else _read_facts(shared_folder, plan.what)
    if not builds:
        return ""
    plan_facts = plan.facts
    # The build that differs in the fewest versions.
    nearest_build = min(builds, key=lambda facts: sum(facts.get(name) != value for name, value in plan_facts.items()))
    differences = [
        (name, value, nearest_build.get(name, ""))
        for name, value in plan_facts.items()
        if nearest_build.get(name) != value
    ]
    expected_versions = " and ".join(
        _describe_fact(name, value, nearest_value) for name, value, nearest_value in differences
    )
    found_versions = " and ".join(
        _describe_fact(name, nearest_value, value) for name, value, nearest_value in differences
    )
    return (
        f"{shared_folder}: expected {plan.what} for {expected_versions or 'these versions'}; found "
        f"{found_versions or 'a damaged build'}. Load the modules that fit, or have {plan.what} built there, too: "
        f"`matex build --into {shared_folder}`"
    )


def _describe_fact(name: str, value: str, other_value: str) -> str:
    """`value` of `name` for people, as short as possible while it still differs from `other_value`."""
    if name != "MPI":
        return f"{name} {value}".strip()
    short_version = compilers.shorten_version(value)
    return short_version if short_version != compilers.shorten_version(other_value) else " ".join(value.split())


def _read_facts(folder: Path, library_name: str) -> list[dict[str, str]]:
    """The versions of the builds of `library_name` in `folder`, from their records."""
    builds = []
    for path in sorted(folder.glob("matex-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a damaged record is skipped
            record = json.loads(path.read_text())
            if record["what"] == library_name:
                builds.append(record)
    return builds


def try_compiler() -> compilers.Compiler:
    """The compiler of the MPI that mpi4py loads, after a trial compilation. Raises BuildError."""
    compiler = find_compiler()
    try:
        compilers.try_compiler(compiler, _FLAGS)
    except compilers.CompilerError as error:
        raise errors.BuildError(f"the TensorFlow ops cannot be built: {error}") from error
    return compiler


def find_compiler() -> compilers.Compiler:
    """The compiler of the MPI that mpi4py loads. Raises BuildError."""
    try:
        return compilers.find_compiler()
    except (compilers.CompilerError, OSError) as error:
        raise errors.BuildError(f"the TensorFlow ops cannot be built: {error}") from error


def make_engine_plan() -> Plan:
    """The plan of the engine for the MPI that mpi4py loads. Its key is a hash of its inputs; no compiler is needed.

    Raises:
        errors.BuildError: mpi4py or its MPI cannot be loaded.
    """
    try:
        mpi = compilers.describe_loaded_mpi()
    except compilers.CompilerError as error:
        raise errors.BuildError(str(error)) from error
    key = _make_key("matex-engine-", platform.machine(), mpi, *_FLAGS, hash_sources())
    return Plan("the engine", 10, ("engine",), mpi, "", (f"-I{SOURCE}", *_FLAGS), key)


def make_plan(engine: Plan | None = None) -> Plan:
    """The plan of the ops over `engine`; None: over `make_engine_plan`.

    Raises:
        errors.BuildError: this TensorFlow is too old.
    """
    if tuple(map(int, tf.version.VERSION.split(".")[:2])) < OLDEST_TENSORFLOW:
        oldest = ".".join(map(str, OLDEST_TENSORFLOW))
        raise errors.BuildError(
            f"expected TensorFlow {oldest} or newer; found {tf.version.VERSION}, in {tf.__file__}. Load the module of "
            "a newer one, or `pip install -U tensorflow`"
        )
    engine = engine or make_engine_plan()
    flags = tf.sysconfig.get_compile_flags()
    own_flags = (flag for flag in flags if not flag.startswith("-I"))
    return dataclasses.replace(
        engine,
        what="the ops",
        seconds=15,
        folders=("tensorflow",),
        tensorflow=tf.version.VERSION,
        options=(*engine.options, *flags, *tf.sysconfig.get_link_flags()),
        key=_make_key("matex-", tf.version.VERSION, tf.version.GIT_VERSION, *own_flags, engine.key),
        linked=engine,
    )


def make_xla_plan() -> Plan:
    """The plan of the XLA kernels over the ops.

    Raises:
        BuildError: TensorFlow's folder lacks the library or the headers.
    """
    ops_plan = make_plan()
    library_folder, include_folder = Path(tf.sysconfig.get_lib()), Path(tf.sysconfig.get_include())
    for path in (library_folder / _XLA_LIBRARY, include_folder / "tensorflow/compiler/tf2xla/xla_op_kernel.h"):
        if not path.exists():
            raise errors.BuildError(f"the XLA kernels cannot be built: this TensorFlow comes without {path}")
    includes = (f"-I{include_folder / name}" for name in _XLA_INCLUDES)
    return dataclasses.replace(
        ops_plan,
        what="the XLA kernels",
        seconds=30,
        folders=("xla",),
        options=(*ops_plan.options, *_XLA_FLAGS, *includes, f"-L{library_folder}", f"-l:{_XLA_LIBRARY}"),
        key=_make_key("matex-xla-", ops_plan.key, *_XLA_FLAGS),
        linked=ops_plan,
    )


def _make_key(prefix: str, *parts: str) -> str:
    return prefix + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _list_link_options(plan: Plan | None, into: Path | None) -> list[str]:
    """The options to link the library of `plan` and the libraries that it links; built now if necessary. None: []."""
    if plan is None:
        return []
    path = ensure_library(plan, into=into)
    return [*_list_link_options(plan.linked, into), f"-L{path.parent}", f"-l:{path.name}"]


def list_source_files(*folders: str) -> list[Path]:
    """The C++ files of these folders of `SOURCE`, in a fixed order."""
    return [path for folder in folders for path in sorted(SOURCE.glob(f"{folder}/**/*.cc"))]


def hash_sources() -> str:
    """The hash of all C++ files and headers, including their names."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(SOURCE):  # each rank does this at its start: Path objects take 10 ms more
        folders.sort()
        for name in sorted(names):
            if name.endswith((".h", ".cc")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(f"{os.path.relpath(path, SOURCE)}\0".encode() + file.read() + b"\0")
    return digest.hexdigest()


def is_whole(plan: Plan, folder: Path) -> bool:
    """Whether `folder` has the library of this plan, undamaged, and no untrusted user could have written it.

    A library gets its name only when it is complete, and its digest is in its record. So a library whose build was
    killed, or that is damaged, is built again.
    """
    library, record = folder / plan.library, _name_record(plan, folder)
    try:
        os.listdir(folder)  # refreshes a network file system's cache, which may miss a file made by another host
        if trust.find_exposure(record) or trust.find_exposure(library):
            return False
        return json.loads(record.read_text())["digest"] == _hash_file(library)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _name_record(plan: Plan, folder: Path) -> Path:
    return folder / f"{plan.key}.json"


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile_plan(plan: Plan, compiler: compilers.Compiler, folder: Path, verbose: bool, into: Path | None) -> None:
    """Build the library of `plan` into `folder`; first the libraries that it links, if they are not built yet.

    `into`: the folder that is to contain the linked libraries, too; None: any folder may have them.
    """
    link_options = _list_link_options(plan.linked, into)
    command = [compiler.path, "-x", "c++", "-", *plan.options, *link_options]
    # The dynamic linker finds a linked library by its soname among the loaded libraries, whatever their folders.
    command += ["-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{plan.library}"]
    cache.print_message(
        f"building {plan.what} for {_describe_versions(plan)} in {folder}, once; this takes some {plan.seconds} s"
    )
    if verbose:
        cache.print_message(" ".join(command))
    for leftover in folder.glob(f"{plan.key}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            # A newer file may belong to a process that builds now, on a file system without locks.
            if time.time() - leftover.stat().st_mtime > _MAX_BUILD_SECONDS:
                leftover.unlink()
    descriptor, built_name = tempfile.mkstemp(prefix=f"{plan.key}.", suffix=".tmp", dir=folder)
    os.close(descriptor)
    built_file = Path(built_name)
    start = time.monotonic()
    try:
        # One translation unit of all files: most of the time goes into TensorFlow's headers, which are then read once.
        source = "".join(f'#include "{path.relative_to(SOURCE)}"\n' for path in list_source_files(*plan.folders))
        exit_code, output = compilers.run_compiler([*command, "-o", str(built_file)], source, built_file)
        if exit_code != 0:
            raise errors.BuildError(_describe_failure(plan, folder, command, output))
        _keep_library(plan, folder, built_file, command)
    finally:
        built_file.unlink(missing_ok=True)
    if verbose:
        cache.print_message(f"built in {time.monotonic() - start:.1f} s")


def _keep_library(plan: Plan, folder: Path, built_file: Path, command: list[str]) -> None:
    """Write the record of the complete file `built_file`, and give the file the library's name."""
    built_file.chmod(0o755)
    record = built_file.with_suffix(".json.tmp")
    facts = {"digest": _hash_file(built_file), "what": plan.what, **plan.facts, "command": command}
    record.write_text(json.dumps(facts, indent=1))
    record.chmod(0o644)  # readable for all users, under any umask
    # The library comes last: until it has its name, no file matches the record's digest.
    os.replace(record, _name_record(plan, folder))
    os.replace(built_file, folder / plan.library)


def _describe_failure(plan: Plan, folder: Path, command: list[str], output: str) -> str:
    """The message for a compiler that failed with this output; writes all of the output to a log file."""
    log_file = folder / f"{plan.key}.log"
    log_file.write_text(" ".join(command) + "\n" + output)
    return (
        f"{plan.what} cannot be built for {_describe_versions(plan)}: {command[0]} failed. All of its output is in "
        f"{log_file}.\n{compilers.describe_errors(output)}"
    )


def _describe_versions(plan: Plan) -> str:
    mpi = compilers.shorten_version(plan.mpi)
    return f"TensorFlow {plan.tensorflow} and {mpi}" if plan.tensorflow else mpi
