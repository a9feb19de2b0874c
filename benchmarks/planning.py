"""What `matex plan` predicts beside what is measured.

    python benchmarks/planning.py sizes [MODEL ...]     # computation and memory at sizes that were not measured
    python benchmarks/planning.py memory [MODEL ...]    # peaks of runs that keep to the advice for a --memory
    python benchmarks/planning.py ranks [MODEL ...]     # steps of one and two ranks on this host
    sudo python benchmarks/planning.py hosts [MODEL ...]    # steps of two hosts at 1 Gbit/s, a core each
    sudo python benchmarks/planning.py order            # which way of reducing is fastest on four hosts
    python benchmarks/planning.py replay [MODEL ...]    # timelines of two ranks, played again
    python benchmarks/planning.py speed                 # how long a plan takes, and predictions, up to 1,024 ranks

Models are those of benchmarks/models.py; hosts are network namespaces (benchmarks/network.py).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from models import CASES, LARGE
from network import Hosts

from matex_tf import memory, settings
from matex_tf.launch import command_line, run_options
from matex_tf.launch.planning import requests
from matex_tf.launch.planning import run as planning
from matex_tf.launch.planning.ranks import Launch, time_real_run
from matex_tf.planner.compute import Compute
from matex_tf.planner.measurement import phantoms
from matex_tf.planner.plan_file import Gradient, Plan, Size
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.planner.simulator import replay, run, what_if

HERE = Path(__file__).resolve().parent
RATE = "1gbit"
SOME_ROWS, FEW = {"cnn": 1024, "mlp": 8192}, 8
"""Of a batch (else 16), and steps, where memory is asked about: the peak is there after three."""
ROWS = {"alexnet-device": (28, 56), "alexnet": (28, 56), "resnet20": (4,)}
STEPS = {"on": 32, "off": 14}
"""Of ranks: overlapped, buckets are chosen after the 13th."""


def script(name: str, rows: int) -> list[str]:
    """What trains a model in a plain loop, for more steps than are measured."""
    return ["planning_worker.py", name, str(rows), "200"]


def asked(ranks: Sequence[int], per_host: int, **other: object) -> requests.PlanRequest:
    """What `matex plan` would be asked on the command line."""
    usual = (list(ranks), per_host, "ethernet25", "strong", 0.7, 0.0, 1, 0, 0.0, phantoms.STEPS, "", "")
    return replace(requests.PlanRequest(*usual), **other)


def on_this_host(
    ranks: int, target: Sequence[str], options: Sequence[str], environment: Mapping[str, str] | None
) -> list[str]:
    """The command line of ranks here."""
    return command_line.make_command_line(run_options.Run(ranks, list(target), list(options), environment=environment))


def on_hosts(hosts: Hosts) -> Launch:
    """What gives the command line of ranks on hosts."""

    def launch(
        ranks: int, target: Sequence[str], options: Sequence[str], environment: Mapping[str, str] | None
    ) -> list[str]:
        words = hosts.options()
        words[words.index("--host") + 1] = options[1] if options else f"{hosts.names[0]}:{ranks}"
        told = [name for name in environment or os.environ if name.startswith(("MATEX_", "TF_CPP", "PATH"))]
        exported = " ".join(f"-x {name}" for name in told).split()
        start = [*hosts.enter(hosts.names[0]), "mpirun", "--allow-run-as-root", *words, "-n", str(ranks), *exported]
        return [*start, sys.executable, "-m", "matex_tf", *target]

    return launch


@contextmanager
def some_hosts(count: int) -> Iterator[tuple[Hosts, Launch]]:
    """Hosts of a core each, as this process has meanwhile, which measures what one of them computes."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder, Hosts(count, RATE, folder, own_cores=True) as found:
        os.sched_setaffinity(0, [min(cores)])
        try:
            yield found, on_hosts(found)
        finally:
            os.sched_setaffinity(0, cores)


def off(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+7.1%}"


def show(predicted: float, measured: float) -> str:
    """Milliseconds, and how far off the prediction is."""
    return f"{1e3 * predicted:9.1f} {1e3 * measured:9.1f} {off(predicted, measured)}"


def sizes(names: Sequence[str]) -> None:
    """Predictions from two sizes, four times apart, for those between and twice beyond; from three, for all others."""
    errors: dict[str, list[float]] = {}
    print(f"{'model':10} {'from rows':>14} {'at':>4} predicted  measured ms  off   predicted  measured MiB")
    for name in names or (*CASES, *LARGE):
        rows = {**CASES, **LARGE}[name].batch * 2
        found = {}
        for ranks in (1, 2, 4, 8, 16):
            with tempfile.TemporaryDirectory() as folder:
                found[ranks] = phantoms.measure_copies(script(name, rows), ranks, 1, Path(folder)).size
        for known, others in (((1, 4), (2,)), ((2, 8), (4, 1, 16)), ((4, 16), (8, 2)), ((1, 4, 16), (2, 8))):
            of = Compute(make_plan(rows, [found[one] for one in known]))
            for ranks in others:
                size = found[ranks]
                what = "between" if known[0] < ranks < known[-1] else "beyond"
                seconds, peak = of.estimate_seconds(ranks), of.estimate_memory_of_rows(size.rows)
                errors.setdefault(f"computation {what}", []).append(seconds / size.typical - 1)
                errors.setdefault(f"memory {what}", []).append(peak / size.peak_bytes - 1)
                basis = ",".join(str(found[one].rows) for one in known)
                print(f"{name:10} {basis:>14} {size.rows:4} {show(seconds, size.typical)}   {peak / 2**20:6.0f} "
                      f"{size.peak_bytes / 2**20:6.0f} {off(peak, size.peak_bytes)}", flush=True)  # fmt: skip
    for what, each in sorted(errors.items()):
        print(f"{what}: median {median(map(abs, each)):.1%}, most {max(map(abs, each)):.1%} of {len(each)}")
    told = [one for what, each in errors.items() if what.startswith("memory") for one in each]
    short = sum((1 + one) * memory.MARGIN < 1 for one in told)
    print(f"{memory.MARGIN - 1:.0%} more than predicted were too little in {short} of {len(told)}")


def find_fewest_ranks(predictor: Predictor, limit: float) -> Prediction:
    """The step of the fewest ranks that fit, with the margin of `matex plan --memory`."""
    every = (predictor.predict_step(ranks) for ranks in range(1, predictor.plan.rows + 1))
    return next(one for one in every if one.memory * memory.MARGIN <= limit)


def find_peak(target: Sequence[str], ranks: int, limits: Mapping[str, str]) -> int:
    """The most resident bytes of a rank of a run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if ranks == 1:
            return phantoms.measure_copies(target, 1, 1, folder, FEW, limits=limits).size.peak_bytes

        def start(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
            return on_this_host(ranks, words, [], environment)

        phantoms.measure_real(start, target, folder, FEW, "strong", limits)
        return max(int(np.load(path)["peak"]) for path in folder.glob("copy-*.npz") if ".part" not in path.name)


def memories(names: Sequence[str]) -> None:
    """Of each model seven limits between what one row and what all rows take, and the peak of a run as is advised."""
    print(f"{'model':10} --memory MiB  advice                predicted  measured MiB  of --memory")
    shares = []
    for name in names or ("alexnet", "cnn", "mlp"):
        batch = SOME_ROWS.get(name, 16)
        target = script(name, batch)
        found = []
        for ranks in (1, 4, 16):
            with tempfile.TemporaryDirectory() as folder:
                found.append(phantoms.measure_copies(target, ranks, 1, Path(folder), FEW))
        gradients = sum(one.bytes for one in found[0].steps.gradients)
        predictor = Predictor(make_plan(batch, [one.size for one in found], gradients))
        least, most = (predictor.compute.estimate_memory_of_rows(rows) for rows in (batch // 16, batch))
        for number in range(7):
            limit = memory.MARGIN * (least * 1.02 + (most * 1.02 - least) * number / 6)
            if number % 2 and name != "resnet50":  # whose BatchNormalization has no parts
                told, predicted = "1 rank, in parts", limit / memory.MARGIN
                peak = find_peak(target, 1, phantoms.make_limits(limit, settings.AUTO))
            else:
                one = find_fewest_ranks(predictor, limit)
                told, predicted = f"{one.ranks} rank{'s' * (one.ranks > 1)}", one.memory
                peak = find_peak(target, one.ranks, phantoms.make_limits(limit, 0))
            shares.append(peak / limit)
            print(f"{name:10} {limit / 2**20:12.0f}  {told:20} {predicted / 2**20:10.0f} {peak / 2**20:13.0f} "
                  f"{peak / limit:11.2f}", flush=True)  # fmt: skip
    print(f"{sum(share > 1 for share in shares)} of {len(shares)} runs took more than --memory")


def make_plan(rows: int, sizes: Sequence[Size], gradient_bytes: int = 0) -> Plan:
    """One of these sizes alone."""
    bare = tuple(replace(one, ready=(one.typical,), at=()) for one in sizes)
    return Plan(("x.py",), "here", 1, 1, "strong", True, rows, 0, (Gradient("all", gradient_bytes),), (), bare,
                network="ethernet25")  # fmt: skip


def ranks(names: Sequence[str]) -> None:
    """As `matex plan --ranks 1,2` and then `matex plan --check -n 1,2`."""
    print(f"{'model':10} ranks predicted  measured     off")
    for name in names or CASES:
        made = planning.measure_plan(asked([1, 2], 2), script(name, 2 * CASES[name].batch), on_this_host)
        for count in (1, 2):
            one = Predictor(made).predict_step(count)
            print(f"{name:10} {count:5} {show(one.step, time_real_run(made, one, [], on_this_host))}", flush=True)


def time_ranks(made: Plan, launch: Launch, options: list[str], count: int, **told: str) -> float:
    """Seconds of a step with such settings."""
    os.environ.update(told)
    try:
        with tempfile.TemporaryDirectory() as folder:
            steps = STEPS[told["MATEX_OVERLAP"]]
            start: Callable[..., list[str]] = lambda target, given: launch(count, target, options, given)  # noqa: E731
            return phantoms.measure_real(start, made.script, Path(folder), steps, made.scaling)
    finally:
        for one in told:
            del os.environ[one]


def hosts(names: Sequence[str]) -> None:
    """Two hosts: gradients reduced as they are computed, and at once."""
    print(f"{'model':15} rows  overlap predicted  measured     off")
    for name in names or ("alexnet-device", "alexnet"):
        for rows in ROWS[name]:
            with some_hosts(2) as (two, launch):
                what = asked([1, 2], 1, scaling="weak", hosts=tuple(two.names))
                made = planning.measure_plan(what, script(name, rows), launch)
                for overlap in ("on", "off"):
                    one = Predictor(replace(made, overlaps=overlap == "on")).predict_step(2)
                    took = time_ranks(made, launch, ["--host", "h1:1,h2:1"], 2, MATEX_OVERLAP=overlap)
                    print(f"{name:15} {rows:4}  {overlap:7} {show(one.step, took)}", flush=True)


def order(names: Sequence[str]) -> None:
    """Four hosts: each way of reducing, predicted and measured."""
    predicted, measured = {}, {}
    with some_hosts(4) as (four, launch):
        what = asked([1, 4], 1, scaling="weak", hosts=tuple(four.names))
        made = planning.measure_plan(what, script("alexnet-device", 28), launch)
        everywhere = ["--host", ",".join(f"{name}:1" for name in four.names)]
        for overlap in ("on", "off"):
            for algorithm in ("mpi", "ring", "two_level"):
                way = f"overlap={overlap}", f"algorithm={algorithm}"
                predicted[way] = run.simulate_plan(made, 4, what_if.read_changes(way)).step
                told = {"MATEX_OVERLAP": overlap, "MATEX_ALGORITHM": algorithm}
                measured[way] = time_ranks(made, launch, everywhere, 4, **told)
                print(f"{' '.join(way):32} {show(predicted[way], measured[way])}", flush=True)
    known = Predictor(made).links.is_mpi_known(4)  # else no plan counts on MPI's own
    chosen = min((way for way in predicted if known or "algorithm=mpi" not in way), key=lambda way: predicted[way])
    best = min(measured.values())
    print(f"predicted best: {' '.join(chosen)}, which takes {measured[chosen] / best:.2f} of the measured best")


def replays(names: Sequence[str]) -> None:
    """A timeline is played again with nothing changed."""
    print(f"{'model':10} steps    again  measured     off")
    for name in names or ("mlp", "cnn", "resnet20"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "timeline.json")
            words = [*script(name, 2 * CASES[name].batch)[:-1], "60"]
            environment = {**os.environ, "MATEX_TIMELINE": str(path)}
            ended = subprocess.run(on_this_host(2, words, (), environment), env=environment, capture_output=True)
            if ended.returncode:
                sys.exit((ended.stdout + ended.stderr).decode())
            found = replay.replay_timeline(path)
            print(f"{name:10} {found.steps:5} {show(found.replayed, found.measured)}", flush=True)


def speed(names: Sequence[str]) -> None:
    """A whole plan of a script with steps of some 100 ms; closed forms, and simulated steps of an MLP."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    made = planning.measure_plan(asked([2**power for power in range(11)], 2), script("cnn", 128), on_this_host)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    alone, busy = made.sizes[0].typical, max(size.busy for size in made.sizes)
    print(f"a plan to 1,024 ranks of steps of {1e3 * alone:.0f} ms: {took:.0f} s, {cores:.0f} core seconds; other "
          f"processes took {busy:.0%} of the cores", flush=True)  # fmt: skip
    made = planning.measure_plan(asked([1, 1024], 2, steps=10), script("mlp", 1024), on_this_host)
    began = time.perf_counter()
    for count in (2**power for power in range(11)):
        Predictor(made).predict_step(count)
    print(f"11 numbers of ranks to 1,024: {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    run.simulate_plan(made, 1024, what_if.read_changes(["overlap=on"]), steps=3)
    print(f"3 simulated steps of 1,024 ranks, {len(made.gradients)} gradients: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    works = {
        "sizes": sizes,
        "memory": memories,
        "ranks": ranks,
        "hosts": hosts,
        "order": order,
        "replay": replays,
        "speed": speed,
    }
    if len(sys.argv) < 2 or sys.argv[1] not in works:
        sys.exit(__doc__)
    os.chdir(HERE)
    os.environ.update(Hosts.environment({"MATEX_QUIET": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}))
    works[sys.argv[1]](sys.argv[2:])
