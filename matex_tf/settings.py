"""Every MATEX_* setting, in one typed table.

The reference page `docs/settings.md` is made from this table (`python -m matex_tf.settings`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "MATEX_"
_FIXED = ("auto", "allreduce", "sharded", "async", "servers:auto")
STRATEGIES = (*_FIXED, "servers:S", "servers:S:only", "async:K", "local:H")
_ONLY = ":only"
ADAPT = ("off", "on", "ranks")
_MOST = 2**53  # in every language's numbers


_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _parse_boolean(text: str) -> bool:
    value = text.strip().lower()
    if value in _ON:
        return True
    if value in (*_OFF, ""):
        return False
    raise ValueError("one of 1, 0, true, false, yes, no, on, off")


def _make_choice_parser(*names: str) -> Callable[[str], str]:
    def parse_choice(text: str) -> str:
        value = text.strip().lower()
        value = "on" if value in _ON else "off" if value in _OFF else value
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return parse_choice


def parse_placement(text: str) -> str:
    """`auto`, `off`, `spread`, or `spread:I/N`. Raises ValueError."""
    name, colon, part = text.strip().lower().partition(":")
    if colon and name == "spread":
        place, slash, parts = part.partition("/")
        if slash and place.isdigit() and parts.isdigit() and 1 <= int(place) <= int(parts):
            return f"spread:{int(place)}/{int(parts)}"
        raise ValueError("spread:I/N with I from 1 to N")
    return _make_choice_parser("auto", "spread", "off")(text)


def parse_strategy(text: str) -> str:
    """One of `STRATEGIES`. Raises ValueError."""
    value = text.strip().lower()
    name, _, number = value.partition(":")
    number = number.removesuffix(_ONLY) if name == "servers" else number
    is_whole = number.isascii() and number.isdigit() and int(number) < _MOST
    least = {"servers": 1, "async": 0, "local": 1}.get(name)
    if value not in _FIXED and not (is_whole and least is not None and int(number) >= least):
        raise ValueError("one of " + ", ".join(STRATEGIES) + ", with whole numbers S and H from 1, and K from 0")
    return value


def parse_adapt(text: str) -> str:
    """One of `ADAPT`. Raises ValueError."""
    return _make_choice_parser(*ADAPT)(text)


def get_strategy_name(strategy: str) -> str:
    """It without its number."""
    return strategy.partition(":")[0]


def get_strategy_number(strategy: str, otherwise: int) -> int:
    """The number in `local:8` or the like, `otherwise` if there is none, or if it is `auto`."""
    number = strategy.removesuffix(_ONLY).partition(":")[2]
    return int(number) if number.isdigit() else otherwise


def count_only_serving(strategy: str) -> int:
    """How many ranks only serve: they own the pieces, and have no rows of batches."""
    return get_strategy_number(strategy, 0) if strategy.endswith(_ONLY) else 0


def is_statistical(strategy: str) -> bool:
    """Whether results are not meant to be those of the script alone."""
    return get_strategy_name(strategy) in ("async", "local")


def is_asynchronous(strategy: str) -> bool:
    """Whether it is async, with a bound or without."""
    return get_strategy_name(strategy) == "async"


def _parse_count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < _MOST:
        raise ValueError(f"a whole number, 0 or more and less than {_MOST}")
    return value


AUTO = -1
"""As many rows as fit memory."""
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def _parse_rows(text: str) -> int:
    if text.strip().lower() == "auto":
        return AUTO
    try:
        return _parse_count(text)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from None


def parse_size(text: str) -> float:
    """The bytes that a size such as 16GiB stands for. Raises ValueError."""
    match = re.fullmatch(r"(\d+\.?\d*)\s*([kmgt]?i?)b?", text.strip().lower())
    if not match or match[2] not in _UNITS:
        raise ValueError("a size such as 16GiB")
    return float(match[1]) * _UNITS[match[2]]


def format_bytes(amount: float) -> str:
    """Bytes for people, in powers of 1000: 8 B, 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if amount >= 99.5 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _parse_steps_and_folder(text: str) -> str:
    steps, _, folder = text.partition(":")
    if text and not (steps.isascii() and steps.isdigit() and folder):
        raise ValueError("STEPS:FOLDER, as `matex run --check` sets it")
    return text


@dataclass(frozen=True)
class Phantom:
    """What `MATEX_PLAN` asks for: to work as rank 0 of `ranks` for `steps` steps, as one of `copies` on this host.

    0 ranks: those that there are, which are then measured.
    """

    ranks: int
    steps: int
    copy: int
    copies: int
    folder: str


def _parse_phantom(text: str) -> Phantom | None:
    if not text:
        return None
    phantom = None
    try:
        ranks, steps, copy, copies, folder = text.split(":", 4)
        phantom = Phantom(int(ranks), int(steps), int(copy), int(copies), folder)
    except ValueError:
        pass
    if phantom is None or phantom.ranks < 0 or not 0 <= phantom.copy < phantom.copies or not phantom.folder:
        raise ValueError("RANKS:STEPS:COPY:COPIES:FOLDER, as `matex plan` sets it")
    return phantom


def _parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number of seconds, 0 or more")
    return value


def _parse_interval(text: str) -> float:
    value = _parse_seconds(text)
    if value < 0.01:
        raise ValueError("a number of seconds, 0.01 or more")
    return value


def _keep_text(text: str) -> str:
    return text


@dataclass(frozen=True)
class Compression:
    """What `MATEX_COMPRESSION` asks for: none, bf16, fp16 or topk, and of that which share of the numbers."""

    kind: str
    share: float = 1.0

    def __str__(self) -> str:
        return f"topk:{self.share:g}" if self.kind == "topk" else self.kind


NO_COMPRESSION = Compression("none")


def _parse_compression(text: str) -> Compression:
    kind, colon, share = text.strip().lower().partition(":")
    if kind in ("none", "bf16", "fp16") and not colon:
        return Compression(kind)
    try:
        value = float(share)
    except ValueError:
        value = 0.0
    if kind != "topk" or not 0 < value <= 1:
        raise ValueError("one of none, bf16, fp16, or topk: and a share above 0 and up to 1, such as topk:0.01")
    return Compression(kind, value)


@dataclass(frozen=True)
class Setting:
    """One row of the table: its name without the prefix, how it is read, its default and what it does."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    values: str
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


TABLE = (
    Setting(
        "disable",
        _parse_boolean,
        False,
        "0, 1",
        "1: the script runs as if the library were not there. Under mpirun each rank then runs it alone.",
    ),
    Setting(
        "scaling",
        _make_choice_parser("strong", "weak"),
        "strong",
        "strong, weak",
        "strong: the script's batch is the global batch, and each rank computes its slice. The result is as "
        "alone. weak: the script's batch is each rank's own. The global batch is that times the number of "
        "ranks, and an epoch takes that many times fewer steps. Learning rates stay as they are.",
    ),
    Setting(
        "strategy",
        parse_strategy,
        "auto",
        ", ".join(STRATEGIES),
        "auto: allreduce or sharded, which have the same bits: the one that the ranks' first steps find faster. "
        "allreduce: every rank updates all weights. sharded: each rank updates an equal piece of them and holds the "
        "optimizer's variables of that piece only. servers: S of the ranks do, as evenly over the hosts as can be; "
        "with auto as many as the planner's model finds fastest; with :only the last S ranks, and only the others "
        "train. The results are the same. async: on one host, each rank trains whole batches of fit in turn, on "
        "weights that all share. None begins a batch more than K ahead of the oldest under way (4, or 2 for each other "
        "rank, unless told). local: in fit, each rank trains H steps by itself on its slices of batches; then the "
        "weights become the ranks' average. Results of both are statistical. An unavailable strategy is reported once, "
        "and runs as allreduce. docs/strategies.md has more. `matex run --strategy` sets it.",
    ),
    Setting(
        "eager",
        _make_choice_parser("auto", "whole"),
        "auto",
        "auto, whole",
        "auto: in eager training steps, ranks share the calls of Keras models and of functions, from the second step "
        "on. whole: every rank computes whole batches there.",
    ),
    Setting(
        "adapt",
        parse_adapt,
        "off",
        ", ".join(ADAPT),
        "on: a rank that is slower than others gets fewer rows of each batch. The result stays that of the script "
        "alone, whose batches are not changed. ranks: under `matex run`, their number also changes as hosts come and "
        "go, and the strategy where that is worth it. docs/adapt.md has more. `matex run --adapt` sets it.",
    ),
    Setting(
        "microbatch",
        _parse_rows,
        0,
        "rows, auto",
        "A step that is a tf.function, `fit`'s among them, computes a rank's slice in parts of so many rows, one after "
        "the other, so that only one part's activations are in memory. Results are the same; nothing is computed "
        "twice. Tensors that are used after a collective, as with BatchNormalization, are kept for all rows. It also "
        "works without ranks. A line names steps that are computed at once. auto: in parts only where a slice does "
        "not fit memory, which is measured at the first slices; one line says so. 0: all rows at once.",
    ),
    Setting(
        "memory",
        parse_size,
        0.0,
        "size, as 16GiB",
        "The most memory that a rank's process may take with MATEX_MICROBATCH=auto. 0: the rank's share of what its "
        "host, its container or job, and its limits (ulimit -v) leave. `matex run --memory` sets it.",
    ),
    Setting(
        "chunk_bytes",
        _parse_count,
        0,
        "bytes",
        "Gradients are reduced in pieces of this size. 0: 1 MiB on one host, where MPI allocates memory anew for "
        "much larger ones; 8 MiB between hosts, where each piece costs the network's delay.",
    ),
    Setting(
        "fuse_bytes",
        _parse_count,
        256 << 10,
        "bytes",
        "Gradients smaller than this are fused and reduced as one. Larger ones are reduced in place.",
    ),
    Setting(
        "overlap",
        _make_choice_parser("auto", "on", "off"),
        "auto",
        "auto, on, off",
        "on: a communication thread reduces gradients as they are computed. off: they are reduced all at once. auto: "
        "whichever is faster in a step's first calls, which begin with off on one host and with on on several. "
        "Only inside functions of TensorFlow that XLA does not compile.",
    ),
    Setting(
        "device_pointers",
        _make_choice_parser("auto", "on", "off"),
        "off",
        "off, auto, on",
        "Whether gradients that are reduced all at once stay in the GPU's memory, and MPI is given their addresses. "
        "auto: where the MPI of every rank says that it takes them (MPIX_Query_cuda_support and its like). on: without "
        "asking. A line at the start says what comes of it. It was never run on a GPU, and is off by default.",
    ),
    Setting(
        "algorithm",
        _make_choice_parser("auto", "mpi", "ring", "two_level"),
        "auto",
        "auto, mpi, ring, two_level",
        "How large sums over ranks are computed. mpi: by MPI's own all-reduce. ring: by a ring, which sends the "
        "fewest bytes. two_level: within each host first, then each of its ranks carries a slice to the other hosts. "
        "auto: in shared memory on one host, else whichever is fastest on the first of them.",
    ),
    Setting(
        "compression",
        _parse_compression,
        NO_COMPRESSION,
        "none, bf16, fp16, topk:SHARE",
        "Changes the result: float32 gradients of variables travel as bfloat16, as float16 (scaled), or only the "
        "largest SHARE of each (topk:0.01). The rest is added to the next gradient. docs/performance.md has "
        "loss curves.",
    ),
    Setting(
        "compression_links",
        _make_choice_parser("all", "hosts"),
        "all",
        "all, hosts",
        "hosts: only what goes from host to host is compressed, not what stays within a host.",
    ),
    Setting(
        "ranks_per_node",
        _parse_count,
        0,
        "ranks",
        "For tests: sums take so many consecutive ranks for a host of their own. 0: those that share memory.",
    ),
    Setting(
        "drift_steps",
        _parse_count,
        1000,
        "steps",
        "Ranks compare a checksum of all weights after 1, 2, 4, 8, ... steps, and each time after so many. 0: never.",
    ),
    Setting(
        "check_numerics",
        _parse_boolean,
        False,
        "0, 1",
        "1: in steps that ranks share, NaN or infinity in a gradient of any rank is an error on all. It names "
        "variable, rank and update. 0: they are passed on as arithmetic gives them. They are no error in a step that "
        "looks whether its gradients are finite, as with a LossScaleOptimizer, which skips such steps.",
    ),
    Setting(
        "stall_seconds",
        _parse_count,
        60,
        "seconds",
        "When ranks have waited so long for others at one place, one of them says who waits for whom, and where "
        "those are. 0: never.",
    ),
    Setting(
        "abort_seconds",
        _parse_count,
        600,
        "seconds",
        "When ranks have waited so long, the job ends with exit code 70; after ten times as long if those that they "
        "wait for are saving. This holds whatever MATEX_STALL_SECONDS says. 0: never.",
    ),
    Setting(
        "state",
        _keep_text,
        "",
        "folder",
        "The folder of the run's state, from which the script continues when it is started again. `matex run "
        "--restarts` names one by itself. All hosts must share it. Empty: no state is kept.",
    ),
    Setting(
        "elastic",
        _parse_boolean,
        False,
        "0, 1",
        "1: if a rank is lost, the others continue from the last step that all had completed. `matex run --elastic` "
        "sets it and starts an MPI that reports losses. Updates are then not overlapped.",
    ),
    Setting(
        "save_seconds",
        _parse_seconds,
        60,
        "seconds",
        "Where MATEX_STATE is set, how often the state of `fit` is kept. 0: only at the end of each call of `fit`, "
        "and on SIGTERM or SIGUSR1.",
    ),
    Setting(
        "cache_dir",
        _keep_text,
        "",
        "folder",
        "Where the compiled ops are kept, and where records begin in files. Empty: the user's cache folder "
        "(XDG_CACHE_HOME or ~/.cache).",
    ),
    Setting(
        "ops_dir",
        _keep_text,
        "",
        "folder",
        "Where to look first for compiled ops, as `matex build --into` has built them for all users. Nothing is "
        "written there. Empty: the folder matex_tf.libs beside the installed package.",
    ),
    Setting(
        "log_dir",
        _keep_text,
        "",
        "folder",
        "Each rank's own output is written to rank-N.log in this folder; the file of the run before becomes "
        "rank-N.log.1. Empty: only rank 0 prints; errors of every rank still reach the terminal.",
    ),
    Setting(
        "output",
        _make_choice_parser("first", "all"),
        "first",
        "first, all",
        "first: rank 0 prints, and its files stay. What other ranks write in Python goes to a private folder of that "
        "rank, from which it also reads. That folder is dropped at the end. all: every rank prints, saves and writes "
        "for itself, as if alone.",
    ),
    Setting(
        "files_dir",
        _keep_text,
        "",
        "folder",
        "Where ranks other than 0 keep what they write. Empty: the folder for temporary files if that is on a disk, "
        "else /var/tmp or the cache folder; memory (tmpfs) only where there is nothing else.",
    ),
    Setting(
        "files_bytes",
        _parse_count,
        0,
        "bytes",
        "The most that a rank other than 0 may keep of what it writes; more ends the job with exit code 74. 0: half of "
        "what is free on that disk, divided by the ranks of the host.",
    ),
    Setting(
        "placement",
        parse_placement,
        "auto",
        "auto, spread, spread:I/N, off",
        "auto: the cores and GPUs of a host are spread over its ranks before TensorFlow starts its threads, unless "
        "the user set threads or binding. spread: the same, also where the launcher was told how to bind (`matex "
        "run` sets it). spread:I/N: the same over part I of N of each host, as `matex tune` deals it out. off: left as "
        "the launcher set them.",
    ),
    Setting(
        "large_pages",
        _parse_boolean,
        True,
        "0, 1",
        "1: memory of ranks lies in large pages, where the C library is glibc 2.35 or later and the kernel's "
        "transparent_hugepage is `madvise`. `matex run` and `python -m matex_tf` set GLIBC_TUNABLES for it, unless you "
        "have. 0: they do not. A process alone is left as it is.",
    ),
    Setting(
        "xla",
        _make_choice_parser("auto", "off"),
        "auto",
        "auto, off",
        "auto: on CPUs, functions with jit_compile=True are compiled by XLA with our collectives in them. The "
        "kernels are built at first need (half a minute, once). off: XLA is turned off for functions that hold a "
        "collective.",
    ),
    Setting(
        "timeline",
        _keep_text,
        "",
        "file.json",
        "Under several ranks, what each computes, waits for, copies and sends is written to this file at the end of "
        "the script. It is a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.",
    ),
    Setting(
        "profile",
        _parse_boolean,
        False,
        "0, 1",
        "1: under several ranks, a table at the end of the script says what training steps spent their time on. "
        "`matex run --profile` sets it.",
    ),
    Setting(
        "record",
        _keep_text,
        "",
        "folder",
        "Under several ranks, each rank writes what it uses and waits for to a file in this folder, which all hosts "
        "must share. `matex top` and `matex report` read it; `matex run --record` sets it. Empty: nothing is recorded.",
    ),
    Setting(
        "record_seconds",
        _parse_interval,
        1.0,
        "seconds",
        "How often; half as often each time that a file has got 20,000 lines more.",
    ),
    Setting(
        "explain",
        _parse_boolean,
        False,
        "0, 1",
        "1: under several ranks, a line for each step says whether it is sharded. Of a sharded one it names the sums, "
        "and ops that need all rows, with their lines; of another the reason. `matex run --explain` sets it.",
    ),
    Setting(
        "quiet",
        _parse_boolean,
        False,
        "0, 1",
        "1: the library prints no notes on standard error. Errors are still raised.",
    ),
    Setting(
        "traceback",
        _make_choice_parser("script", "full"),
        "script",
        "script, full",
        "script: the traceback of an error that ends the run shows the frames of the script and of its libraries. "
        "full: it shows those of matex_tf, too.",
    ),
    Setting(
        "check",
        _parse_steps_and_folder,
        "",
        "steps:folder",
        "Set by `matex run --check` for the runs that it compares: where they store their first steps.",
    ),
    Setting(
        "plan",
        _parse_phantom,
        None,
        "ranks:steps:copy:copies:folder",
        "Set by `matex plan` for what it measures: the process works as rank 0 of so many ranks, which are not there.",
    ),
    Setting(
        "trial",
        _keep_text,
        "",
        "file",
        "Set by `matex tune` for its trials: where rank 0 notes what `fit` logs, and what `matex_tf.report` is given.",
    ),
    Setting(
        "pause",
        _parse_count,
        0,
        "epochs",
        "Set by `matex tune --rungs`: once so many epochs of `fit` have ended since the script was first started, the "
        "run keeps its state (MATEX_STATE) and ends with exit code 75. 0: never.",
    ),
    Setting(
        "proof",
        _keep_text,
        "",
        "folder",
        "Set by `matex run`: where the ranks report that they have ended, without which its exit code is not 0.",
    ),
)

_BY_NAME = {setting.name: setting for setting in TABLE}


class SettingError(ValueError):
    """A MATEX_* variable has a value that it cannot have, or there is no such variable."""


class Settings:
    """The values in force: one attribute for each row of `TABLE`, read from `environment` when made."""

    disable: bool
    scaling: str
    strategy: str
    eager: str
    adapt: str
    microbatch: int
    memory: float
    chunk_bytes: int
    fuse_bytes: int
    steps: str
    overlap: str
    device_pointers: str
    algorithm: str
    compression: Compression
    compression_links: str
    ranks_per_node: int
    drift_steps: int
    check_numerics: bool
    stall_seconds: int
    abort_seconds: int
    state: str
    elastic: bool
    save_seconds: float
    cache_dir: str
    ops_dir: str
    log_dir: str
    output: str
    files_dir: str
    files_bytes: int
    placement: str
    large_pages: bool
    xla: str
    timeline: str
    profile: bool
    record: str
    record_seconds: float
    explain: bool
    quiet: bool
    traceback: str
    check: str
    plan: Phantom | None
    trial: str
    pause: int
    proof: str

    def __init__(self, environment: Mapping[str, str]):
        known = {setting.variable for setting in TABLE}
        for variable in environment:
            if variable.startswith(PREFIX) and variable not in known:
                raise SettingError(
                    f"{variable} is set, but there is no such setting. The settings are: " + ", ".join(sorted(known))
                )
        for setting in TABLE:
            value = setting.default
            if setting.variable in environment:
                given = environment[setting.variable]
                try:
                    value = setting.parse(given)
                except ValueError as expected:
                    raise SettingError(f"{setting.variable}={given!r}: expected {expected}.") from None
            setattr(self, setting.name, value)
        if self.adapt != "off" and is_asynchronous(self.strategy):
            raise SettingError(
                f"MATEX_ADAPT={self.adapt} and MATEX_STRATEGY=async do not go together: asynchronous ranks train whole "
                "batches, and a slower one takes fewer of them as it is. Set one of the two."
            )
        if self.elastic:
            if self.overlap == "on":
                raise SettingError(
                    "MATEX_ELASTIC=1 and MATEX_OVERLAP=on do not go together: what is under way in a thread cannot be "
                    "undone when a rank is lost."
                )
            if self.algorithm == "two_level" or self.compression != NO_COMPRESSION:
                raise SettingError(
                    "MATEX_ELASTIC=1 does not go together with MATEX_ALGORITHM=two_level, in which ranks may wait for "
                    "others than the one that is lost, nor with MATEX_COMPRESSION, of which a lost rank's part would "
                    "be lost with it."
                )
            if count_only_serving(self.strategy):
                raise SettingError(
                    f"MATEX_ELASTIC=1 and MATEX_STRATEGY={self.strategy} do not go together: a rank that trains "
                    "would have to serve in place of a lost one. Set one of the two, or take `matex run --restarts 3`."
                )
            self.overlap = "off"


_current: Settings | None = None


def get_settings() -> Settings:
    """The settings of this process, read from its environment at the first call."""
    global _current
    if _current is None:
        _current = Settings(os.environ)
    return _current


def format_reference() -> str:
    """The settings as a page of Markdown."""
    lines = [
        "# Settings",
        "",
        "Environment variables, read once when the library is imported. Ranks must agree on them.",
        "",
        "| variable | values | default | meaning |",
        "|---|---|---|---|",
    ]
    for setting in TABLE:
        default = {True: "1", False: "0", "": "(empty)", None: "(empty)"}.get(setting.default, str(setting.default))
        lines.append(f"| `{setting.variable}` | {setting.values} | {default} | {setting.meaning} |")
    lines += ["", "This page is written by `python -m matex_tf.settings`.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_reference(), end="")
