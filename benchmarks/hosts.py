"""What a network costs: sums of 16 MiB and whole steps on hosts of this machine with links of limited bandwidth.

    sudo python benchmarks/hosts.py [--rate 1gbit] [--sums 4] [--ranks-per-host 1 2] [--servers 4] [--rounds 2]
                                    [--models alexnet alexnet-device resnet20]

Beside each figure stands its physical reference: for a sum over N hosts the time of 2 (N - 1) / N of its bytes on the
link, for a step the larger of the computation, in a process on each host without the library, and the time of the
gradients' bytes on the link. Steps are timed with gradients reduced as they are computed (`MATEX_OVERLAP=on`) and all
at once (off), and overlapped with `MATEX_STRATEGY=sharded`, whose new weights come while the next step computes, in
turns. Each of the two hosts has one core, of which the network takes time, too: "of the core" is what
overlapped steps take of it beyond the computation. "alexnet-device" has a device compute the same gradients, which here
is sleep, so that the core is free for the network; "normalised-device" has BatchNormalization before each layer, over
the batch of all ranks, for which it has a collective forwards and one backwards.

`--servers` times steps that compute next to nothing, so that a step is the exchange of 16 MiB of gradients and weights,
with all of it in order (`MATEX_OVERLAP=off`): reduced by all ranks, and by one owner or by as many as there are hosts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from network import Hosts

HERE = Path(__file__).resolve().parent
UNITS = {"gbit": 1e9, "mbit": 1e6}
# Batches whose computation takes about as long as their gradients' way, at 1 Gbit/s on one core, and twice as long.
BATCHES = {
    "alexnet": (28, 56),
    "alexnet-device": (28, 56),
    "normalised-device": (28, 56),
    "resnet20": (1, 4),
    "mlp": (384, 768),
    "cnn": (32, 64),
}
HEADER = "  model              batch    compute   transfer     of the core" + "".join(
    f"{way:>19}" for way in ("overlapped", "at once", "sharded")
)
WAYS = {
    "on": {"MATEX_OVERLAP": "on", "MATEX_STRATEGY": "allreduce"},
    "off": {"MATEX_OVERLAP": "off", "MATEX_STRATEGY": "allreduce"},
    "sharded": {"MATEX_OVERLAP": "on", "MATEX_STRATEGY": "sharded"},
}
CHOSEN = "16"  # steps after which buckets are chosen
BYTES = 16 << 20


def bandwidth(rate: str) -> float:
    """Bytes a second of a rate of `tc`."""
    for unit, bits in UNITS.items():
        if rate.endswith(unit):
            return float(rate[: -len(unit)]) * bits / 8
    raise SystemExit(f"expected a rate in {' or '.join(UNITS)}, not {rate!r}")


def sums(count: int, rate: str, per_host: int) -> None:
    """The table of sums over `count` hosts."""
    ideal = 2 * (count - 1) / count * BYTES / bandwidth(rate) * 1e3
    print(
        f"16 MiB of float32 over {count} hosts at {rate}, {per_host} rank{'s' * (per_host > 1)} on each: the ring's "
        f"bytes on a host's link take {ideal:.0f} ms"
    )
    algorithms = ("mpi", "ring", "auto") if per_host == 1 else ("mpi", "ring", "two_level", "auto")
    with tempfile.TemporaryDirectory() as folder, Hosts(count, rate, folder) as hosts:
        for algorithm in algorithms:
            said = hosts.mpirun(
                ["-m", "matex_tf", HERE / "hosts_worker.py", "sum", str(BYTES // 4)],
                {"MATEX_ALGORITHM": algorithm, "MATEX_QUIET": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
                per_host,
            )
            raw, ours = map(float, said.split())
            print(f"  raw MPI_Allreduce {raw:6.0f} ms   our op, MATEX_ALGORITHM={algorithm:9} {ours:6.0f} ms"
                  f"   over the ideal {ours / ideal:.2f}", flush=True)  # fmt: skip


def steps(name: str, batch: int, rate: str, rounds: int) -> None:
    """The line of model `name` with batches of so many rows, on two hosts."""
    environment = {"MATEX_QUIET": "1", "MATEX_SCALING": "weak", "TF_CPP_MIN_LOG_LEVEL": "2"}
    words = [str(HERE / "hosts_worker.py"), "step", name, str(batch)]
    found: dict[str, list[list[float]]] = {key: [] for key in ("copies", *WAYS)}
    with tempfile.TemporaryDirectory() as folder, Hosts(2, rate, folder, own_cores=True) as hosts:
        for _ in range(rounds):
            copies = [
                subprocess.Popen(
                    [*hosts.enter(host), sys.executable, *words, "3"],
                    env=hosts.environment(environment),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for host in hosts.names
            ]
            for (said, complaint), copy in [(copy.communicate(), copy) for copy in copies]:
                if copy.returncode:
                    raise SystemExit(f"a copy of {name} failed:\n{said}\n{complaint}")
                found["copies"].append(list(map(float, said.split())))
            for way, settings in WAYS.items():
                said = hosts.mpirun(["-m", "matex_tf", *words, CHOSEN], {**environment, **settings})
                found[way].append(list(map(float, said.split())))
    (compute, cpu, parameters), *ways = (list(map(median, zip(*found[key]))) for key in ("copies", *WAYS))
    transfer = parameters * 4 / bandwidth(rate) * 1e3
    best = max(compute, transfer)
    figures = "".join(f"  {took:10.1f} ({took / best:.2f})" for took, _, _ in ways)
    print(f"  {name:18} {batch:5}  {compute:9.1f}  {transfer:9.1f}  {ways[0][1] - cpu:14.1f}{figures}", flush=True)


def servers(count: int, rate: str, rounds: int) -> None:
    """The table of owners of the weights over `count` hosts."""
    ideal = 2 * (count - 1) / count * BYTES / bandwidth(rate) * 1e3
    print(
        f"steps that exchange 16 MiB over {count} hosts at {rate}: a ring's bytes on a host's link take {ideal:.0f} ms"
    )
    environment = {"MATEX_QUIET": "1", "MATEX_SCALING": "weak", "MATEX_OVERLAP": "off", "TF_CPP_MIN_LOG_LEVEL": "2"}
    words = ["-m", "matex_tf", HERE / "hosts_worker.py", "step", "dense", "1", "3"]
    found: dict[str, list[float]] = {way: [] for way in ("allreduce", "servers:1", f"servers:{count}")}
    with tempfile.TemporaryDirectory() as folder, Hosts(count, rate, folder) as hosts:
        for _ in range(rounds):
            for way, took in found.items():
                took.append(float(hosts.mpirun(words, {**environment, "MATEX_STRATEGY": way}).split()[0]))
    for way, took in found.items():
        step = median(took)
        print(f"  {way:12} {step:6.0f} ms   over the ideal {step / ideal:.2f}   one owner takes"
              f" {median(found['servers:1']) / step:.2f} times as long", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--sums", type=int, default=4, metavar="HOSTS", help="0: none")
    parser.add_argument("--ranks-per-host", type=int, nargs="*", default=[1, 2], metavar="RANKS")
    parser.add_argument("--servers", type=int, default=4, metavar="HOSTS", help="0: none")
    parser.add_argument(
        "--models", nargs="*", choices=BATCHES, default=["alexnet", "alexnet-device", "resnet20"], metavar="MODEL"
    )
    parser.add_argument("--batches", type=int, nargs="*", metavar="ROWS", help="in place of those of each model")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    for per_host in arguments.ranks_per_host if arguments.sums else ():
        sums(arguments.sums, arguments.rate, per_host)
    if arguments.servers:
        servers(arguments.servers, arguments.rate, arguments.rounds)
    if arguments.models:
        print(f"2 hosts at {arguments.rate}, one core each: ms a step (over the larger of compute and transfer)")
        print(HEADER)
    for name in arguments.models:
        for batch in arguments.batches or BATCHES[name]:
            steps(name, batch, arguments.rate, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
