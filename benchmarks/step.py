"""Step time of a few models: alone, as independent copies, and under ranks with the library, as ratios in one run.

    python benchmarks/step.py [--fit [--elastic]] [--xla] [--own] [--imported] [--compare] [--gradients]
                              [--strategies NAME ...]
                              [--models mlp cnn resnet20 resnet20-plain alexnet alexnet32 alexnet32-adam]

Steps of a loop of one's own, or with --fit those of Keras' `fit`, from one to the next. One thread and one core for
each process, and every process computes the same number of rows in each setting: ranks take batches of their own
(`MATEX_SCALING=weak`), or with `fit` parts of batches that are larger by their number. All processes of a model are
alive at once. They start one after the other, and then take turns, round by round, so that what the machine does
besides falls on all; figures are medians.
"copies/alone" is what sharing memory and caches costs without any library, "ranks/copies" is what ranks cost. In each
step ranks wait for the slower of them: "slower/copies" is what that alone costs, the median of the longest of the
copies' n-th steps over that of all. Ranks use the default strategy, `auto`, whose trials end before the first round;
--strategies adds a line for each other. BatchNormalization is that of the global batch; "without normalisation" is the
same network without it. --elastic adds a line for `matex run --elastic`. --xla has XLA compile the steps of all.
--imported adds the library in a process of its own, which is not under mpirun. --gradients adds copies that compute
gradients and update nothing, and the bound of any exact way in which N ranks share updates: the time of the gradients
and 1/N of the time of the update, with no time for what travels. --compare adds what else is installed
that trains on several processes (peers.py), all with Keras 2. With --own the milliseconds of a step are those that
cores computed for a process, without its waits for other ranks: on a busy machine only these can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from models import CASES
from peers import MIRRORED, TITLES, find_peers, list_commands

from matex_tf.launch import command_line, run_options
from matex_tf.world import placement

SETTINGS = ("alone", "copies", "ranks")
ELASTIC = "elastic"  # as "ranks", by `matex run --elastic`
SLOWER = "slower"  # of the copies
BOUND = "bound"  # computed from the times of "copies" and "gradients"
STRATEGIES = ("allreduce", "sharded")  # as "ranks", by no choice of the ranks
GRADIENTS = "gradients"  # as "copies", without the update
IMPORTED = "imported"  # as "alone", by `python -m matex_tf`
WORKER = str(Path(__file__).resolve().with_name("step_worker.py"))
PATIENCE = 300  # seconds for the start, and for each round

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "MATEX_QUIET": "1"}
HEADER = (
    f"{'model':26} {'params':>8} {'batch':>6} {'alone':>9} {'copies':>9} {'ranks':>9} {'copies/alone':>13}"
    f" {'slower/copies':>14} {'ranks/copies':>13}   least - most of a round {'memory':>7}"
)


class Workers:
    """The processes of one model: started together, told to run a round, and ended."""

    def __init__(self, name: str, settings: Sequence[str], cpus: Sequence[int], folder: str, words: Sequence[str]):
        self.children: list[subprocess.Popen] = []
        self.channels: dict[str, list] = {setting: [] for setting in settings}
        address = os.path.join(folder, name)

        def worker(setting: str) -> list[str]:
            return [WORKER, name, setting, address, *words]

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(PATIENCE)
            self._start([sys.executable, *worker("alone")], cpus[:1])
            self._await(listener, "alone", 1)
            for cpu in cpus:
                self._start([sys.executable, *worker("copies")], [cpu])
            self._await(listener, "copies", len(cpus))
            if GRADIENTS in settings:
                for cpu in cpus:
                    self._start([sys.executable, *worker(GRADIENTS)], [cpu])
                self._await(listener, GRADIENTS, len(cpus))
            if IMPORTED in settings:
                self._start([sys.executable, "-m", "matex_tf", *worker(IMPORTED)], cpus[:1])
                self._await(listener, IMPORTED, 1)
            for setting in (each for each in ("ranks", ELASTIC, *STRATEGIES) if each in settings):
                # Each rank takes batches of its own, or a part of those that are larger by the number of ranks.
                is_weak = setting != ELASTIC and "--fit" not in words
                words_of_ranks = [*worker(setting), "--ranks", "1" if is_weak else str(len(cpus))]
                told = {"MATEX_SCALING": "weak" if is_weak else "strong"}
                told |= {"MATEX_STRATEGY": setting} if setting in STRATEGIES else {}
                run = run_options.Run(len(cpus), words_of_ranks, elastic=setting == ELASTIC)
                self._start(command_line.make_command_line(run), cpus, told)
                self._await(listener, setting, len(cpus))
            for setting in (each for each in TITLES if each in settings):
                # `fit` deals a batch of all processes out under TensorFlow's strategy, and takes its own elsewhere.
                times = len(cpus) if setting == MIRRORED and "--fit" in words else 1
                words_of_peer = [*worker(setting), "--ranks", str(times)]
                ranks = command_line.make_command_line(run_options.Run(len(cpus), words_of_peer))
                for command, cores, told in list_commands(setting, words_of_peer, cpus, ranks):
                    self._start(command, cores, told)
                self._await(listener, setting, len(cpus))

    def _await(self, listener: socket.socket, setting: str, count: int) -> None:
        """Waits until `count` processes of a setting have warmed up, so that its trials are not disturbed by others."""
        for _ in range(count):
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            channel = connection.makefile("rw")
            assert json.loads(channel.readline()) == setting
            self.channels[setting].append(channel)
        self._answers(setting)

    def _start(self, command: Sequence[str], cpus: Sequence[int], environment: Mapping[str, str] | None = None) -> None:
        bound = ["taskset", "-c", placement.format_cpu_list(cpus), *command]
        environment = {**ENVIRONMENT, **(environment or {})}
        self.children.append(subprocess.Popen(bound, env=environment, stdin=subprocess.DEVNULL))

    def _answers(self, setting: str) -> list:
        lines = [channel.readline() for channel in self.channels[setting]]
        if "" in lines:
            time.sleep(1)  # until mpirun has ended, too
            ended = [(shlex.join(child.args), code) for child in self.children if (code := child.poll()) is not None]
            sys.exit(f"step: a process of {setting!r} has ended before its time; commands and exit codes: {ended}")
        return [json.loads(line) for line in lines]

    def _tell(self, setting: str, steps: int) -> None:
        for channel in self.channels[setting]:
            print(steps, file=channel, flush=True)

    def round(self, setting: str, steps: int) -> tuple[float, float]:
        """The milliseconds of a step: the median over the steps of each process, the mean over the processes; and the
        median of the longest of the n-th steps of all.
        """
        self._tell(setting, steps)
        answers = self._answers(setting)
        medians = [1000 * median(answer) for answer in answers]
        return sum(medians) / len(medians), 1000 * median(map(max, zip(*answers)))

    def end(self) -> tuple[int, dict[str, float]]:
        """Lets all processes end by themselves; gives the number of parameters of their model, and the most bytes that
        a process of each setting took.
        """
        for setting in self.channels:
            self._tell(setting, 0)
        answers = {setting: self._answers(setting) for setting in self.channels}
        for child in self.children:
            child.wait(60)
        ((parameters, _), *_) = answers["alone"]
        return parameters, {setting: max(peak for _, peak in ended) for setting, ended in answers.items()}

    def kill(self) -> None:
        """Ends those that are still there, mpirun by the signal on which it ends its ranks."""
        for child in self.children:
            if child.poll() is None:
                child.terminate()


def ratios(below: Sequence[float], above: Sequence[float]) -> str:
    """The median of the rounds' ratios, and the least and largest of them."""
    found = [b / a for a, b in zip(below, above)]
    return f"{median(found):13.2f}   {min(found):.2f} - {max(found):.2f}"


def row(
    title: str, parameters: int, batch: int, rounds: Mapping[str, Sequence[float]], peaks: Mapping[str, float]
) -> str:
    """The lines of the table of one model: milliseconds a step of each setting in each round, and most bytes."""
    alone, copies, ranks = (median(rounds[setting]) for setting in SETTINGS)
    shared, late = (
        median(b / a for a, b in zip(rounds[below], rounds[above]))
        for below, above in (("alone", "copies"), ("copies", SLOWER))
    )
    found = (
        f"{title:26} {parameters / 1e6:6.2f} M {batch:6} {alone:9.1f} {copies:9.1f} {ranks:9.1f} {shared:13.2f}"
        f" {late:14.2f} {ratios(rounds['copies'], rounds['ranks']):36} {peaks['ranks'] / peaks['copies']:7.2f}"
    )
    extras = {
        ELASTIC: ("elastic", "ranks"),
        IMPORTED: ("library imported", "alone"),
        GRADIENTS: ("gradients without update", "copies"),
        BOUND: ("bound of shared updates", "copies"),
        **{strategy: (strategy, "copies") for strategy in STRATEGIES},
        **{peer: (title, "copies") for peer, title in TITLES.items()},
    }
    for setting in rounds.keys() & extras:
        title, below = extras[setting]
        found += (
            f"\n{'  ' + title:26} {'':8} {'':6} {'':9} {'':9} {median(rounds[setting]):9.1f} {'':13}"
            f" {'over ' + below:>14}"
            f" {ratios(rounds[below], rounds[setting]):36}"
        )
        if setting in peaks:
            found += f" {peaks[setting] / peaks['copies']:7.2f}"
    return found


def measure(name: str, rounds: int, cpus: Sequence[int], folder: str, words: Sequence[str], more: Sequence[str]) -> str:
    """Times one model; gives its lines of the table."""
    case = CASES[name]
    settings = [*SETTINGS, *more]
    workers = Workers(name, settings, cpus, folder, words)
    try:
        milliseconds: dict[str, list[float]] = {setting: [] for setting in [*settings, SLOWER]}
        for _ in range(rounds):
            for setting in settings:
                typical, longest = workers.round(setting, case.steps)
                milliseconds[setting].append(typical)
                if setting == "copies":
                    milliseconds[SLOWER].append(longest)
        parameters, peaks = workers.end()
        if GRADIENTS in settings:
            pairs = zip(milliseconds["copies"], milliseconds[GRADIENTS])
            milliseconds[BOUND] = [without + (whole - without) / len(cpus) for whole, without in pairs]
        return row(case.title, parameters, case.batch, milliseconds, peaks)
    finally:
        workers.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES), metavar="MODEL")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fit", action="store_const", const=["--fit"], default=[], help="time the steps of Keras' fit")
    parser.add_argument("--xla", action="store_const", const=["--xla"], default=[], help="compile the steps of all")
    parser.add_argument(
        "--own", action="store_const", const=["--own"], default=[], help="count what cores compute, without waiting"
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=[], help="time these, too")
    parser.add_argument("--imported", action="store_true", help="time one process with the library imported, too")
    parser.add_argument("--gradients", action="store_true", help="time copies without updates, too")
    parser.add_argument("--elastic", action="store_const", const=[ELASTIC], default=[], help="time elastic ranks, too")
    parser.add_argument("--compare", action="store_true", help="time what else trains on several processes, too")
    arguments = parser.parse_args()
    if arguments.elastic and not arguments.fit:
        parser.error("--elastic is for --fit: a loop of one's own is not made again with fewer ranks")
    if arguments.gradients and arguments.fit:
        parser.error("--gradients is for loops: fit updates in each step")
    more = [*arguments.elastic, *arguments.strategies, *[IMPORTED] * arguments.imported]
    more += [GRADIENTS] * arguments.gradients
    if arguments.compare:
        ENVIRONMENT["TF_USE_LEGACY_KERAS"] = "1"
        more += find_peers()
        for title in (title for peer, title in TITLES.items() if peer not in more):
            print(f"{title} is not installed")
    cores = placement.list_cores()
    if len(cores) < arguments.ranks:
        parser.error(f"{arguments.ranks} ranks need a core each; there are {len(cores)}")
    cpus = [core[0] for core in cores[: arguments.ranks]]
    what = "milliseconds of a core, without waiting, for a step" if arguments.own else "milliseconds a step"
    print(f"{what}; one core and one thread a process, {len(cpus)} copies, {len(cpus)} ranks\n{HEADER}")
    words = [*arguments.fit, *arguments.xla, *arguments.own]
    with tempfile.TemporaryDirectory(prefix="step") as folder:
        for name in arguments.models:
            print(measure(name, arguments.rounds, cpus, folder, words, more), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
