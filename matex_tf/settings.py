"""Every MATEX_* setting, in one typed table.

`get_settings` reads the environment once. The reference page `docs/settings.md` is made from this table
(`python -m matex_tf.settings`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matex_tf import errors

PREFIX = "MATEX_"
_FIXED = ("auto", "allreduce", "sharded", "async", "servers:auto")  # the strategies without a number
STRATEGIES = (*_FIXED, "servers:S", "servers:S:only", "async:K", "local:H")
_LEAST_NUMBERS = {"servers": 1, "async": 0, "local": 1}  # the smallest S, K and H of the strategies with a number
_ONLY = ":only"  # the ending of strategies whose owners do not train
ADAPT = ("off", "on", "ranks")
_MAX_COUNT = 2**53  # exact in float64


_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _parse_boolean(text: str) -> bool:
    """Parse a switch; empty: off. As in all parsers here, the text of the ValueError is the expected value."""
    value = text.strip().lower()
    if value in _ON:
        return True
    if value in (*_OFF, ""):
        return False
    raise ValueError("one of 1, 0, true, false, yes, no, on, off")


def _make_choice_parser(*names: str) -> Callable[[str], str]:
    """A parser of one of `names`. All words of `_ON` mean "on", and all words of `_OFF` mean "off"."""

    def parse_choice(text: str) -> str:
        value = text.strip().lower()
        if value in _ON:
            value = "on"
        elif value in _OFF:
            value = "off"
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return parse_choice


def parse_placement(text: str) -> str:
    """`auto`, `off`, `spread`, or `spread:I/N`. Raises ValueError."""
    name, colon, part = text.strip().lower().partition(":")
    if colon and name == "spread":
        index, slash, part_count = part.partition("/")
        if slash and index.isdigit() and part_count.isdigit() and 1 <= int(index) <= int(part_count):
            return f"spread:{int(index)}/{int(part_count)}"
        raise ValueError("spread:I/N with I from 1 to N")
    return _make_choice_parser("auto", "spread", "off")(text)


def parse_strategy(text: str) -> str:
    """One of `STRATEGIES`. Raises ValueError."""
    value = text.strip().lower()
    name, _, number = value.partition(":")
    if name == "servers":
        number = number.removesuffix(_ONLY)
    least_number = _LEAST_NUMBERS.get(name)  # None: the strategy has no number
    is_number = number.isascii() and number.isdigit()
    is_numbered = least_number is not None and is_number and least_number <= int(number) < _MAX_COUNT
    if value not in _FIXED and not is_numbered:
        raise ValueError("one of " + ", ".join(STRATEGIES) + ", with whole numbers S and H from 1, and K from 0")
    return value


parse_adapt = _make_choice_parser(*ADAPT)


def get_strategy_name(strategy: str) -> str:
    """The strategy without its number, such as "local" for "local:8"."""
    return strategy.partition(":")[0]


def get_strategy_number(strategy: str, default: int) -> int:
    """The number of the strategy, such as 8 for "local:8"; `default` if it has none."""
    number = strategy.removesuffix(_ONLY).partition(":")[2]
    return int(number) if number.isdigit() else default


def count_only_serving(strategy: str) -> int:
    """The number of ranks that only serve: they own the pieces of weights, and have no rows of batches."""
    return get_strategy_number(strategy, 0) if strategy.endswith(_ONLY) else 0


def is_statistical(strategy: str) -> bool:
    """Whether results differ from the results of the script alone."""
    return get_strategy_name(strategy) in ("async", "local")


def is_asynchronous(strategy: str) -> bool:
    """Whether the strategy is async, with or without a bound."""
    return get_strategy_name(strategy) == "async"


def _parse_count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < _MAX_COUNT:
        raise ValueError(f"a whole number, 0 or more and less than {_MAX_COUNT}")
    return value


AUTO = -1
"""The value of `microbatch` for as many rows as fit in memory."""
# The number of bytes of each unit: 1000 for "k", 1024 for "ki", and so on.
_UNITS = {"": 1} | {f"{letter}{i}": (1024 if i else 1000) ** n for n, letter in enumerate("kmgt", 1) for i in ("", "i")}


def _parse_rows(text: str) -> int:
    if text.strip().lower() == "auto":
        return AUTO
    try:
        return _parse_count(text)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from None


def parse_size(text: str) -> float:
    """Parse a size such as 16GiB into bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+\.?\d*)\s*([kmgt]i?|)b?", text.strip().lower())
    if not match:
        raise ValueError("a size such as 16GiB")
    return float(match[1]) * _UNITS[match[2]]


def format_bytes(amount: float) -> str:
    """A number of bytes as text, in powers of 1000: 8 B, 1.5 MB."""
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
    """The value of `MATEX_PLAN`: this process works as rank 0 of `ranks` ranks for `steps` steps.

    It is number `copy` of `copies` such processes on this host, and stores its measurements in `folder`. With 0 ranks,
    the real ranks of the run are measured.
    """

    ranks: int
    steps: int
    copy: int
    copies: int
    folder: str


def _parse_phantom(text: str) -> Phantom | None:
    if not text:
        return None
    with contextlib.suppress(ValueError):
        ranks, steps, copy, copies, folder = text.split(":", 4)
        phantom = Phantom(int(ranks), int(steps), int(copy), int(copies), folder)
        if phantom.ranks >= 0 and 0 <= phantom.copy < phantom.copies and phantom.folder:
            return phantom
    raise ValueError("RANKS:STEPS:COPY:COPIES:FOLDER, as `matex plan` sets it")


def _make_seconds_parser(least_seconds: float) -> Callable[[str], float]:
    def parse_seconds(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least_seconds <= value < float("inf"):
            raise ValueError(f"a number of seconds, {least_seconds:g} or more")
        return value

    return parse_seconds


@dataclass(frozen=True)
class Compression:
    """The value of `MATEX_COMPRESSION`."""

    kind: str  # none, bf16, fp16 or topk
    share: float = 1.0  # with topk, the fraction of the numbers that are sent
    between_hosts: bool = False  # whether only messages between hosts are compressed

    def __str__(self) -> str:
        kind = f"topk:{self.share:g}" if self.kind == "topk" else self.kind
        return kind + (_HOSTS if self.between_hosts else "")


NO_COMPRESSION = Compression("none")
_HOSTS = ":hosts"


def _parse_compression(text: str) -> Compression:
    value = text.strip().lower()
    kind, colon, number = value.removesuffix(_HOSTS).partition(":")
    between_hosts = value.endswith(_HOSTS)
    if kind in ("bf16", "fp16") and not colon:
        return Compression(kind, between_hosts=between_hosts)
    if value == "none":
        return NO_COMPRESSION
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if kind != "topk" or not 0 < share <= 1:
        raise ValueError(
            "one of none, bf16, fp16, or topk: and a share above 0 and up to 1, such as topk:0.01; with :hosts behind "
            "it, only messages between hosts are compressed"
        )
    return Compression(kind, share, between_hosts)


@dataclass
class Setting:
    """A row of the table: an attribute of the class `Settings`. Instances of `Settings` have the value in its place."""

    parse: Callable[[str], Any]
    """Makes the value from the variable's text. The text of its ValueError is the expected value, for a message."""
    default: Any
    values: str  # the possible values, for the reference page
    meaning: str  # a paragraph for the reference page
    is_internal: bool  # not for users: commands of the library set it for processes that they start, or tests do
    name: str = ""  # of the attribute; in capitals and after `PREFIX`, the environment variable

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _public(parse: Callable[[str], Any], default: Any, values: str, meaning: str) -> Any:
    return Setting(parse, default, values, meaning, is_internal=False)


def _internal(parse: Callable[[str], Any], default: Any, values: str, meaning: str) -> Any:
    return Setting(parse, default, values, meaning, is_internal=True)


class Settings:
    """The values in force: one attribute for each row of the table, read from `environment`.

    Raises SettingError for an unknown variable, a value that cannot be parsed, and values that exclude each other.
    """

    # fmt: off
    disable: bool = _public(_parse_boolean, False, "0, 1",
        "1: the script runs as if the library were absent. Under mpirun each rank then runs it alone.")
    scaling: str = _public(_make_choice_parser("strong", "weak"), "strong", "strong, weak",
        "strong: the batch of the script is the global batch, and each rank computes its slice. The result equals "
        "that of the script alone. weak: the batch of the script is the batch of each rank. The global batch is N "
        "times as large on N ranks, and an epoch takes 1/N of the steps. Learning rates stay unchanged.")
    strategy: str = _public(parse_strategy, "auto", ", ".join(STRATEGIES),
        "Which rank updates which weights. auto: allreduce or sharded, whichever the first steps find faster; both "
        "have the same bits. allreduce: every rank updates all weights. sharded: each rank updates an equal piece "
        "and holds only the optimizer variables of that piece. servers:S: S of the ranks own the pieces, spread "
        "over the hosts; auto: as many as the planner's model finds fastest; :only: the last S ranks, which do not "
        "train. async: on one host, each rank trains complete batches of fit on shared weights, at most K batches "
        "ahead of the oldest unfinished one (default: 4, or 2 for each other rank). local:H: in fit, each rank "
        "trains H steps on its slices, then ranks average their weights. Results of async and local are "
        "statistical. An unavailable strategy is reported once and falls back to allreduce. See docs/strategies.md. "
        "`matex run --strategy` sets it.")
    eager: str = _public(_make_choice_parser("auto", "whole"), "auto", "auto, whole",
        "auto: in eager training steps, calls of Keras models and of tf.functions are sharded from the second step "
        "on. whole: every rank computes complete batches there.")
    adapt: str = _public(parse_adapt, "off", ", ".join(ADAPT),
        "on: a slower rank gets fewer rows of each batch. Batches and results stay those of the script alone. "
        "ranks: under `matex run`, the number of ranks also changes as hosts come and go, and the strategy if that "
        "is worth it. See docs/adapt.md. `matex run --adapt` sets it.")
    microbatch: int = _public(_parse_rows, 0, "rows, auto",
        "A step that is a tf.function, as in `fit`, computes its slice in parts of so many rows, one after the "
        "other, so that only the activations of one part are in memory. Results are the same; nothing is computed "
        "twice. Tensors that a collective needs for all rows, as with BatchNormalization, are kept. It also works "
        "with one rank. One line names steps that are computed at once. auto: in parts only if a slice does not fit "
        "memory, as measured at the first slices. 0: all rows at once.")
    memory: float = _public(parse_size, 0.0, "size, as 16GiB",
        "The maximum memory of a rank with MATEX_MICROBATCH=auto. 0: an equal part of the memory that the host, the "
        "container or job, and the limits (ulimit -v) leave. `matex run --memory` sets it.")
    overlap: str = _public(_make_choice_parser("auto", "on", "off"), "auto", "auto, on, off",
        "on: a communication thread reduces gradients while others are computed. off: all gradients are reduced at "
        "the end. auto: the faster of both in the first calls of a step, starting with off on one host and with on "
        "on several. Only in functions of TensorFlow that XLA does not compile.")
    device_pointers: str = _public(_make_choice_parser("auto", "on", "off"), "off", "off, auto, on",
        "Whether gradients stay in GPU memory, and MPI receives their addresses. auto: if the MPI of every rank "
        "reports support (MPIX_Query_cuda_support and similar). on: without asking. One line at the start says "
        "which. Never run on a GPU; off by default.")
    algorithm: str = _public(
        _make_choice_parser("auto", "mpi", "ring", "two_level"), "auto", "auto, mpi, ring, two_level",
        "How large sums over ranks are computed. mpi: by MPI's all-reduce. ring: by a ring, which sends the fewest "
        "bytes. two_level: within each host first; then each rank sums one slice across hosts. auto: in shared "
        "memory on one host, else the fastest of the first sums.")
    compression: Compression = _public(
        _parse_compression, NO_COMPRESSION, "none, bf16, fp16, topk:SHARE, and :hosts behind it",
        "Changes the result: float32 gradients of variables travel as bfloat16, as float16 (scaled), or only the "
        "largest SHARE of each (topk:0.01). The rest is added to the next gradient. With :hosts (fp16:hosts), sums "
        "within a host stay exact. docs/performance.md has loss curves.")
    check_numerics: bool = _public(_parse_boolean, False, "0, 1",
        "1: in sharded steps, NaN or infinity in a gradient of any rank is an error on all ranks. It names "
        "variable, rank and update. Steps that test their gradients themselves, as with a LossScaleOptimizer, are "
        "exempt. 0: no check.")
    abort_seconds: int = _public(_parse_count, 600, "seconds",
        "A rank that waits for others this long ends the run with exit code 70; ten times as long if the others are "
        "saving. 0: never.")
    state: str = _public(str, "", "folder",
        "The folder of the state of the run, from which a restarted script continues. All hosts must share it. "
        "`matex run --restarts` names one by itself. Empty: no state is kept.")
    elastic: bool = _public(_parse_boolean, False, "0, 1",
        "1: after a lost rank the others continue from the last step that all had completed. `matex run --elastic` "
        "sets it and starts an MPI that reports losses. Updates are not overlapped then.")
    save_seconds: float = _public(_make_seconds_parser(0), 60, "seconds",
        "With MATEX_STATE: the interval at which the state of `fit` is kept. 0: only at the end of each `fit`, and "
        "on SIGTERM or SIGUSR1.")
    cache_dir: str = _public(str, "", "folder",
        "The folder of compiled ops, and of indexes of record files. Empty: the cache folder of the user "
        "(XDG_CACHE_HOME or ~/.cache).")
    ops_dir: str = _public(str, "", "folder",
        "The folder searched first for compiled ops, as `matex build --into` makes it for all users. It is never "
        "written. Empty: the folder matex_tf.libs next to the installed package.")
    log_dir: str = _public(str, "", "folder",
        "Each rank writes its output to rank-N.log in this folder; the previous file becomes rank-N.log.1. Empty: "
        "only rank 0 prints; errors of every rank still reach the terminal.")
    output: str = _public(_make_choice_parser("first", "all"), "first", "first, all",
        "first: rank 0 prints, and its files stay. Other ranks write into private folders, which are deleted at the "
        "end. all: every rank prints, saves and writes for itself.")
    placement: str = _public(parse_placement, "auto", "auto, spread, spread:I/N, off",
        "auto: cores and GPUs of a host are divided among its ranks before TensorFlow starts its threads, unless "
        "the user set threads or a binding. spread: the same, even if the launcher was told how to bind (`matex "
        "run` sets it). spread:I/N: the same over part I of N of each host (`matex tune` sets it). off: unchanged.")
    large_pages: bool = _public(_parse_boolean, True, "0, 1",
        "1: memory of ranks lies in large pages, where the C library is glibc 2.35 or later and the kernel's "
        "transparent_hugepage is `madvise`. `matex run` and `python -m matex_tf` set GLIBC_TUNABLES for it, unless you "
        "have. 0: they do not. A process alone is left as it is.")
    xla: str = _public(_make_choice_parser("auto", "off"), "auto", "auto, off",
        "auto: on CPUs, XLA compiles functions with jit_compile=True, including the collectives. The kernels are "
        "built once, in half a minute. off: XLA is turned off for functions with collectives.")
    timeline: str = _public(str, "", "file.json",
        "With several ranks: the file for a trace of what each rank computes, waits for, copies and sends. Open it "
        "at https://ui.perfetto.dev or chrome://tracing.")
    profile: bool = _public(_parse_boolean, False, "0, 1",
        "1: with several ranks, print a table at the end: what training steps spent their time on. `matex run "
        "--profile` sets it.")
    record: str = _public(str, "", "folder",
        "With several ranks: the folder in which each rank records what it uses and waits for. All hosts must share "
        "it. `matex top` and `matex report` read it; `matex run --record` sets it. Empty: no records.")
    explain: bool = _public(_parse_boolean, False, "0, 1",
        "1: with several ranks, print one line for each step: whether it is sharded, its sums and the ops that need "
        "all rows, with their lines; or the reason. `matex run --explain` sets it.")
    quiet: bool = _public(_parse_boolean, False, "0, 1",
        "1: the library prints no notes on standard error. Errors are still raised.")

    chunk_bytes: int = _internal(_parse_count, 0, "bytes",
        "Gradients are reduced in chunks of this size. 0: 1 MiB on one host, where MPI allocates memory again for much "
        "larger ones; 8 MiB between hosts, where each chunk costs the network's delay.")
    fuse_bytes: int = _internal(_parse_count, 256 << 10, "bytes",
        "Gradients smaller than this are fused and reduced as one. Larger ones are reduced in place.")
    ranks_per_node: int = _internal(_parse_count, 0, "ranks",
        "For tests: sums treat each group of so many consecutive ranks as a host. 0: the ranks that share memory.")
    drift_steps: int = _internal(_parse_count, 1000, "steps",
        "Ranks compare a checksum of all weights after 1, 2, 4, 8, ... steps, and after every multiple of this "
        "number of steps. 0: never.")
    stall_seconds: int = _internal(_parse_count, None, "seconds",
        "After ranks have waited for others at one place for this time, one of them prints which ranks wait for which, "
        "and where they are. 0: never. Empty: a tenth of MATEX_ABORT_SECONDS, 60 at most.")
    files_dir: str = _internal(str, "", "folder",
        "The folder of files that ranks other than 0 write. Empty: the folder for temporary files (TMPDIR) if it is on "
        "a disk, else /var/tmp or the cache folder; memory (tmpfs) only where there is nothing else.")
    files_bytes: int = _internal(_parse_count, 0, "bytes",
        "The size of the files that a rank other than 0 may write; more ends the job with exit code 74. 0: half of the "
        "free space of that disk, divided by the ranks of the host.")
    record_seconds: float = _internal(_make_seconds_parser(0.01), 1.0, "seconds",
        "The interval at which MATEX_RECORD writes. It doubles after each 20,000 lines of a file.")
    traceback: str = _internal(_make_choice_parser("script", "full"), "script", "script, full",
        "script: the traceback of an error that ends the run shows the frames of the script and of its libraries. "
        "full: it shows the frames of matex_tf as well.")
    check: str = _internal(_parse_steps_and_folder, "", "steps:folder",
        "Set by `matex run --check` for the runs that it compares: the number of steps that they store, and where.")
    plan: Phantom | None = _internal(_parse_phantom, None, "ranks:steps:copy:copies:folder",
        "Set by `matex plan` for a process that it measures: it works as rank 0 of this number of ranks, which do not "
        "exist.")
    trial: str = _internal(str, "", "file",
        "Set by `matex tune` for its trials: where rank 0 notes the logs of `fit`, and metrics of `matex_tf.report`.")
    pause: int = _internal(_parse_count, 0, "epochs",
        "Set by `matex tune --rungs`: after this number of epochs of `fit` since the first start of the script, the "
        "run keeps its state (MATEX_STATE) and ends with exit code 75. 0: never.")
    passed: str = _internal(str, "", "names",
        "Set by `matex tune` for its trials: variables that `matex run` passes to ranks on other hosts.")
    proof: str = _internal(str, "", "folder",
        "Set by `matex run`: where the ranks report that they have ended. Without the reports its exit code is not 0.")
    # fmt: on

    def __init__(self, environment: Mapping[str, str]):
        settings_by_variable = {setting.variable: setting for setting in _ROWS}
        for variable in environment:
            if variable.startswith(PREFIX) and variable not in settings_by_variable:
                raise errors.SettingError(
                    f"{variable} is set, but there is no such setting. The settings are: "
                    + ", ".join(sorted(setting.variable for setting in TABLE))
                )
        for setting in settings_by_variable.values():
            value = setting.default
            if setting.variable in environment:
                text = environment[setting.variable]
                try:
                    value = setting.parse(text)
                except ValueError as expected:
                    raise errors.SettingError(f"{setting.variable}={text!r}: expected {expected}.") from None
            setattr(self, setting.name, value)
        if self.stall_seconds is None:
            self.stall_seconds = min(max(self.abort_seconds // 10, 1), 60) if self.abort_seconds else 60
        self._check_combinations()
        if self.elastic:
            self.overlap = "off"  # in place of "auto": see `_check_combinations`

    def _check_combinations(self) -> None:
        """Raise SettingError for values that exclude each other."""
        if self.adapt != "off" and is_asynchronous(self.strategy):
            raise errors.SettingError(
                f"MATEX_ADAPT={self.adapt} and MATEX_STRATEGY=async do not go together: asynchronous ranks train whole "
                "batches, and a slower one takes fewer of them as it is. Set one of the two."
            )
        if not self.elastic:
            return
        if self.overlap == "on":
            raise errors.SettingError(
                "MATEX_ELASTIC=1 and MATEX_OVERLAP=on do not go together: what is under way in a thread cannot be "
                "undone when a rank is lost."
            )
        if self.algorithm == "two_level" or self.compression != NO_COMPRESSION:
            raise errors.SettingError(
                "MATEX_ELASTIC=1 does not go together with MATEX_ALGORITHM=two_level, in which ranks may wait for "
                "others than the one that is lost, nor with MATEX_COMPRESSION, of which a lost rank's part would be "
                "lost with it."
            )
        if count_only_serving(self.strategy):
            raise errors.SettingError(
                f"MATEX_ELASTIC=1 and MATEX_STRATEGY={self.strategy} do not go together: a rank that trains would "
                "have to serve in place of a lost one. Set one of the two, or take `matex run --restarts 3`."
            )


_ROWS = [row for row in vars(Settings).values() if isinstance(row, Setting)]
TABLE = [row for row in _ROWS if not row.is_internal]
"""The settings of users."""
INTERNAL = [row for row in _ROWS if row.is_internal]
"""Variables that commands of the library set for the processes that they start, and numbers that tests replace."""
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
    names = ", ".join(f"`{setting.variable}`" for setting in INTERNAL)
    lines += ["", f"Commands of the library, and its tests, set further variables: {names}."]
    lines += ["", "This page is written by `python -m matex_tf.settings`.", ""]
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", "\n".join(lines))


if __name__ == "__main__":
    print(format_reference(), end="")
