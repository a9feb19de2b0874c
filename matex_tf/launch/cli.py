"""The `matex` command: `matex run`, `matex info`, `matex build`. It never joins MPI itself."""

from __future__ import annotations

import difflib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from matex_tf.launch import check_run, hosts, info, mpirun_command, output_file, probe, process, restarts
from matex_tf.ops.build import BuildError, cache_folder
from matex_tf.version import __version__
from matex_tf.world import mpirun_options, placement

USAGES = {
    "run": """\
  matex run -n RANKS [--dry-run] [mpirun options] SCRIPT.py [arguments]
  matex run -n RANKS [--dry-run] [mpirun options] -m MODULE [arguments]
      train SCRIPT.py, unchanged, data-parallel on RANKS ranks; --dry-run prints the command line instead
  matex run --profile -n RANKS [mpirun options] SCRIPT.py [arguments]
      the same, and a table at the end: compute, waiting, communication, bandwidth, and which rank the others wait for
  matex run --explain -n RANKS [mpirun options] SCRIPT.py [arguments]
      the same, and a line for each training step: sharded, or computed whole, and which line of the script is why
  matex run --restarts TIMES -n RANKS [mpirun options] SCRIPT.py [arguments]
      keep the run's state, and after a loss start it again from there, at most TIMES times, on the hosts that are left
  matex run --elastic [--restarts TIMES] -n RANKS [mpirun options] SCRIPT.py [arguments]
      where a rank is lost, the others go on without it within fit; where they cannot, restart, at most 3 or TIMES times
  matex run --check [-n RANKS] [--steps STEPS] [mpirun options] SCRIPT.py [arguments]
      run a few steps alone and on the ranks (5 steps, 2 ranks), and compare loss, weights, printed lines and files
""",
    "info": """\
  matex info
      versions, MPI, cores, GPUs, the state of the compiled ops, and what is wrong, if anything, with how to mend it
""",
    "build": """\
  matex build [--xla]
      compile the ops now rather than at first use; with --xla their kernels for jit_compile=True, too
""",
}
USAGE = f"usage: matex COMMAND ...\n\n{''.join(USAGES.values())}  matex --version | COMMAND --help | --help\n"

RANKS_OPTIONS = ("-n", "-np", "--np", "-c")
OWN_OPTIONS = ("dry-run", "profile", "explain", "restarts", "elastic", "check", "steps")
ASKED_WRONGLY = 2
RESTARTS = 3  # where ranks that are left cannot go on by themselves
MOST = 2**31 - 1  # of what MPI counts


class UsageError(Exception):
    """The command line asks for something that cannot be; its text says what and how to ask."""


@dataclass(frozen=True)
class Run:
    """What `matex run` was asked: the number of ranks, the script or module with its arguments, mpirun's options."""

    ranks: int
    target: list[str]
    options: list[str] = field(default_factory=list)
    dry_run: bool = False
    check: bool = False
    steps: int = check_run.STEPS
    profile: bool = False
    restarts: int = 0
    elastic: bool = False
    explain: bool = False


def parse_run(words: Sequence[str]) -> Run:
    """Reads the words after `matex run`. Raises UsageError if there is no number of ranks or no script."""
    words, target = mpirun_options.split_options(words)
    ranks, dry_run, comparing, profile, steps, options = None, False, False, False, None, []
    again, elastic, explain = 0, False, False
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in RANKS_OPTIONS:
            ranks = whole_number("-n", value if equals else next(rest, ""), "ranks")
        elif word == "--dry-run":
            dry_run = True
        elif word == "--check":
            comparing = True
        elif word == "--profile":
            profile = True
        elif word == "--explain":
            explain = True
        elif word == "--elastic":
            elastic = True
        elif name == "--restarts":
            again = whole_number("--restarts", value if equals else next(rest, ""), "restarts")
        elif name == "--steps":
            steps = whole_number("--steps", value if equals else next(rest, ""), "steps")
        else:
            options.append(word)
    refuse_misspelt(options)
    if not target or target == ["-m"]:
        raise UsageError(
            "no script is named. For example: matex run -n 4 train.py, or matex run -n 4 -m package.module"
        )
    if ranks is None and comparing:
        ranks = 2
    if ranks is None:
        raise UsageError(f"how many ranks? For example: matex run -n 4 {shlex.join(target)}")
    if steps is not None and not comparing:
        raise UsageError("--steps goes with --check: how many steps of the two runs are compared")
    if profile and comparing:
        raise UsageError("--profile and --check do not go together: what is checked is a few first steps")
    if explain and comparing:
        raise UsageError("--explain and --check do not go together: what is checked is a few first steps")
    if explain and ranks == 1:
        raise UsageError("--explain tells what ranks share: -n expects 2 or more")
    if again and comparing:
        raise UsageError("--restarts and --check do not go together: what is checked is a few first steps")
    if again and ranks == 1:
        raise UsageError("--restarts keeps the state of ranks that train together: -n expects 2 or more")
    if elastic and comparing:
        raise UsageError("--elastic and --check do not go together: what is checked is a few first steps")
    if elastic and ranks == 1:
        raise UsageError("--elastic goes on without a rank that is lost: -n expects 2 or more")
    if elastic and not again:
        again = RESTARTS
    if profile and ranks == 1:
        raise UsageError("--profile tells what ranks do together: -n expects 2 or more")
    return Run(ranks, target, options, dry_run, comparing, steps or check_run.STEPS, profile, again, elastic, explain)


def refuse_misspelt(options: Sequence[str]) -> None:
    """Raises UsageError for an option that is none of mpirun's, as far as we know, and close to one of ours."""
    for word, *_ in hosts.groups(options):
        name = mpirun_options.option_name(word)
        meant = difflib.get_close_matches(name.lower(), OWN_OPTIONS, n=1, cutoff=0.8)
        if word.startswith("-") and meant and name not in mpirun_options.ARITY:
            why = f"--{meant[0]} takes no value" if name == meant[0] else f"did you mean --{meant[0]}?"
            raise UsageError(f"there is no option {word}; {why}")


def whole_number(option: str, text: str, of: str) -> int:
    """The number after `option`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST:
        raise UsageError(f"{option} expects the number of {of}, 1 or more; {text!r} was given")
    return int(text)


def check_target(run: Run) -> None:
    """Raises UsageError if the script is not there (unless mpirun is to change the folder first)."""
    moves = any(mpirun_options.option_name(word) in ("wdir", "wd") for word in run.options)
    if run.target[0] != "-m" and not moves and not os.path.isfile(run.target[0]):
        raise UsageError(f"there is no file {run.target[0]} in {os.getcwd()}")


def find_mpirun() -> mpirun_command.Mpirun:
    """This machine's mpirun. Raises UsageError if there is none, or none of the MPI that mpi4py loads."""
    library = probe.mpi_library()
    mpirun = probe.find_mpirun(library)
    if mpirun is None:
        raise UsageError(f"there is no mpirun. {info.GET_MPI}")
    if other := info.of_another_mpi(mpirun, library):
        raise UsageError(other)
    return mpirun


def command_line(run: Run) -> list[str]:
    """The mpirun command line for `run` on this machine. Raises UsageError if there is no mpirun."""
    mpirun, cores = find_mpirun(), len(placement.cores())
    chosen = {"MATEX_PROFILE": run.profile, "MATEX_EXPLAIN": run.explain}
    settings = {name: "1" for name, is_on in chosen.items() if is_on}
    if run.restarts:
        settings["MATEX_STATE"] = restarts.state_folder(run.target)
    if run.elastic:
        if mpirun.family != mpirun_options.OPENMPI or mpirun.major < 5:
            raise UsageError(
                "--elastic needs Open MPI 5 or later, whose mpirun leaves other ranks alone when one is lost; this "
                f"is {mpirun.family or 'an unknown MPI'} {mpirun.version}. --restarts goes with any MPI"
            )
        settings["MATEX_ELASTIC"] = "1"
    by_memory = probe.has_memory_for(run.ranks, mpirun)
    options = mpirun_command.options(
        mpirun, run.ranks, cores, os.geteuid() == 0, run.options, os.environ, settings, by_memory
    )
    return mpirun_command.command(mpirun, options, sys.executable, run.target)


def run(words: Sequence[str]) -> int:
    """`matex run`: mpirun's output, signals and exit code, but 0 only where all ranks have ended well."""
    asked = parse_run(words)
    if not asked.dry_run:
        check_target(asked)
    if asked.check and asked.target[0] != "-m":
        # Both runs have a folder of their own; the script stays where it is.
        asked = replace(asked, target=[os.path.abspath(asked.target[0]), *asked.target[1:]])
    if asked.dry_run:
        print(shlex.join(command_line(asked)))
        return 0
    if asked.check:
        return check_run.check(
            asked.ranks, [sys.executable, "-m", "matex_tf", *asked.target], command_line(asked), asked.steps
        )
    with output_file.Outlet() as out:
        code = _start(asked)
    return out.exit_code(code)


def _start(asked: Run) -> int:
    elsewhere = mpirun_options.chooses_hosts(asked.options, os.environ)
    shared = cache_folder() if elsewhere else None
    if asked.restarts or "MATEX_STATE" in os.environ:
        return restarts.run(
            restarts.Attempt(asked.ranks, asked.options),
            asked.restarts,
            lambda attempt: command_line(replace(asked, ranks=attempt.ranks, options=attempt.options)),
            find_mpirun(),
            shared,
            os.environ.get("MATEX_STATE") or restarts.state_folder(asked.target),
        )
    with process.proof_folder(shared) as folder:
        return process.run(command_line(asked), folder)


def build(words: Sequence[str]) -> int:
    """`matex build`: compiles the ops, with `--xla` their XLA kernels too, and prints where they are."""
    if [*words] not in ([], ["--xla"]):
        raise UsageError(f"matex build takes no argument but --xla; {shlex.join(words)} was given")
    from matex_tf.ops import build as builder

    try:
        print(builder.build_xla(verbose=True) if words else builder.build(verbose=True))
    except (ImportError, OSError, RuntimeError) as error:
        print(f"matex build: {error}", file=sys.stderr)
        return 1
    return 0


def show_info(words: Sequence[str]) -> int:
    """`matex info`: exit code 1 if something is wrong."""
    if words:
        raise UsageError(f"matex info takes no arguments; {shlex.join(words)} was given")
    facts = info.gather()
    print(info.report(facts), end="")
    return 1 if info.complaints(facts) else 0


COMMANDS = {"run": run, "info": show_info, "build": build}


def main(words: Sequence[str] | None = None) -> int:
    """The command with the words of the command line; gives the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else ASKED_WRONGLY
    if words[0] == "--version":
        print(f"matex_tf {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UsageError(f"there is no command {words[0]!r}; the commands are " + ", ".join(COMMANDS))
        if words[1:2] in (["--help"], ["-h"]):
            print(f"usage:\n{USAGES[words[0]]}", end="")
            return 0
        process.hear_children()
        return COMMANDS[words[0]](words[1:])
    except (UsageError, BuildError) as error:
        print(f"matex: {error}", file=sys.stderr)
        return ASKED_WRONGLY
    except KeyboardInterrupt:
        return process.ended_by({signal.SIGINT})


if __name__ == "__main__":
    sys.exit(main())
