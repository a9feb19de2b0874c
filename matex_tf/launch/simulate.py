"""The command `matex simulate`: simulate the step of a plan, with optional changes, and suggest parameter servers.

The command prints one of four tables: simulated steps, a replayed timeline, parameter servers, or mini-batches. The
formulas for the last two are those of the papers HTC (Zou et al., 2017) and XAI (Salama et al., 2019), and of a
queueing network (`planner.papers`, `planner.queueing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from matex_tf.launch.option_types import BYTES, HERE, RANKS, Parsed, check_writable, parse_ranks
from matex_tf.launch.planning import minibatch
from matex_tf.planner import plan_file, predict, queueing
from matex_tf.planner.papers import htc, xai
from matex_tf.planner.papers.domain import Estimate
from matex_tf.planner.simulator import program, replay, run, trace, what_if


def _parse_seconds(text: str) -> float:
    try:
        return what_if.parse_seconds(text)
    except ValueError:
        raise ValueError("a time as 80ms or 1.5s") from None


_SECONDS = Parsed("time", _parse_seconds)


@click.command("simulate", short_help="Simulate a plan's step, and what would change it.")
@click.argument("plan", required=False, metavar="[PLAN.json]")
@click.option(
    "--ranks",
    type=RANKS,
    metavar="LIST",
    help="The numbers of ranks: 1,2,4,...,1024. Default: the greatest number that the plan has measured.",
)
@click.option("--what", multiple=True, metavar="NAME=VALUE", help="A change from the list above; repeatable.")
@click.option("--timeline", metavar="FILE", help="Write the last run as a trace for Perfetto.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="The seed of the noise.")
@click.option("--servers", is_flag=True, help="The number of parameter servers by three models.")
@click.option(
    "--compute", type=_SECONDS, help="With --servers: the time of a step's computation. Default: from the plan."
)
@click.option(
    "--transfer", type=_SECONDS, help="With --servers: the time of a step's pull and push. Default: from the plan."
)
@click.option(
    "--bandwidth-ratio", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
    help="With --servers: bandwidth of a server over that of a worker.",
)  # fmt: skip
@click.option(
    "--target", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
    help="With --servers: the efficiency to reach.",
)  # fmt: skip
@click.option("--minibatch", is_flag=True, help="The mini-batch of a convolutional network, by HTC's integer program.")
@click.option("--memory", type=BYTES, help="With --minibatch: the memory of the device, as 12GiB.")
@click.option("--rows", type=RANKS, metavar="LIST", help=f"With --minibatch: batch sizes. Default: {minibatch.ROWS}.")
@click.option(
    "--layers", metavar="WORDS", help="With --minibatch: '32x32x3 conv:3+1:64 pool:2/2 dense:10'. Default: AlexNet."
)
def simulate_command(plan: str | None, ranks: list[int] | None, **options: Any) -> int:
    """Simulate the step of PLAN.json, written by `matex plan`, on ranks that need not exist.

    In place of the plan, a file that a run wrote with MATEX_TIMELINE is replayed; `--what slow=RANK:FACTOR` slows a
    rank down.

    \b
    matex simulate plan.json --ranks 16,64 --what overlap=off --what link=2us,25GB/s
    matex simulate --servers --ranks 4,8,16 --compute 80ms --transfer 20ms
    matex simulate --minibatch --memory 2GiB

    \b
    overlap=on|off                    gradients are summed while others are computed
    buckets=best|ibatch|each|25MiB    which gradients share a sum
    algorithm=mpi|ring|two_level      how sums are made
    compression=fp16|topk:0.01        between hosts: gradients in 16 bits, or 1% of them
    link=2us,25GB/s                   between hosts: latency of a message, and bandwidth
    slow=3:1.2                        rank 3 computes 20% longer
    noise=0.03                        deviation of each rank's computation
    ranks-per-host=8
    strategy=sharded|servers:S|local:H  who updates the weights
    servers=5,async|sync              parameter servers in place of sums
    pull=default|layerwise|ibatch     with servers=: how workers pull the parameters
    """
    _check_options(plan, options)
    if options["minibatch"]:
        sizes = options["rows"] or parse_ranks(minibatch.ROWS)
        return minibatch.show_minibatch(options["layers"] or "", sizes, options["memory"])
    try:
        if plan and replay.is_timeline(plan):
            _show_replay(plan, ranks, options)
        elif options["servers"]:
            _show_servers(plan_file.load_plan(plan) if plan else None, ranks, options)
        elif plan:
            _show_steps(plan_file.load_plan(plan), ranks, options)
        else:
            raise click.UsageError("name the file of a plan (`matex plan` writes it), or say --servers")
    except ValueError as error:  # no plan, or nothing to simulate
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    return 0


def _check_options(plan: str | None, options: dict[str, Any]) -> None:
    """Raises click.UsageError for an unwritable --timeline, and for options that do not go together.

    Some options need --minibatch; --minibatch excludes some others.
    """
    if options["timeline"]:
        check_writable("--timeline", Path(options["timeline"]))
    if not options["minibatch"]:
        for name in ("memory", "rows", "layers"):
            if options[name]:
                raise click.UsageError(f"--{name} goes with --minibatch")
        return
    if plan or options["servers"] or options["what"]:
        excluded_argument = plan or ("--servers" if options["servers"] else "--what")
        raise click.UsageError(
            f"--minibatch goes without {excluded_argument}: it knows a network by its --layers alone"
        )
    if not options["memory"] or options["memory"] == HERE:  # HERE: the word `here`, about this host's memory
        raise click.UsageError("--minibatch needs the memory of the device, as --memory 12GiB")


def _show_replay(path: str, ranks: Sequence[int] | None, options: dict[str, Any]) -> None:
    """Print the step of a timeline: as measured, as replayed, and with slow ranks."""
    changes = options["what"]
    # What a replay cannot show: other changes than a slow rank, and options that need a plan.
    refused_arguments = [change for change in changes if not change.startswith("slow=")]
    plan_options = {"--ranks": ranks, "--timeline": options["timeline"], "--servers": options["servers"]}
    refused_arguments += [option for option, value in plan_options.items() if value]
    if refused_arguments:
        raise click.UsageError(
            f"a timeline is replayed with slow=RANK:FACTOR only; {refused_arguments[0]} needs a plan"
        )
    table = Table(Column("what", no_wrap=True), "step, ms")
    replayed = replay.replay_timeline(path)
    table.add_row("measured", f"{1e3 * replayed.measured:.2f}")
    table.add_row("replayed", f"{1e3 * replayed.replayed:.2f}")
    for change in changes:
        table.add_row(change, f"{1e3 * replay.replay_timeline(path, what_if.read_changes([change]).slow).replayed:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"Means of {replayed.steps} steps, with the time between epochs. Collectives take as long as measured."
    )


def _show_steps(plan: plan_file.Plan, ranks: Sequence[int] | None, options: dict[str, Any]) -> None:
    """Print the steps: as planned, with each what-if alone, and with all what-ifs. `ranks`: None, as in the plan."""
    ranks, changes = ranks or [plan.sizes[-1].ranks], list(options["what"])
    server_changes = [change for change in changes if change.startswith("servers=")]

    # For each row of the table, its name and its changes: no change, each change alone, and all changes.
    rows: list[tuple[str, list[str]]] = [("as planned", [])]
    for change in changes:
        # A change of pulls has a meaning with servers only, so it has a row with each change of servers.
        pairs = [[change, server] for server in server_changes] if change.startswith("pull=") else []
        rows += [(" ".join(pair) if len(pairs) > 1 else change, pair) for pair in pairs] or [(change, [change])]
    if len(changes) > 1 and len({change.partition("=")[0] for change in changes}) == len(changes):
        rows.append(("all of these", changes))  # two values of one name exclude each other
    variants = [(row_name, what_if.read_changes(row_changes)) for row_name, row_changes in rows]
    table = Table("ranks", Column("what", no_wrap=True), "step", "compute", "slowest", "exposed", "rows/s")
    assumptions: list[str] = []
    notes: list[str] = []
    for rank_count in ranks:
        for row_name, what_ifs in variants:
            is_last = rank_count == ranks[-1] and row_name == variants[-1][0]
            per_host = what_ifs.ranks_per_host or plan.ranks_per_host
            timeline_path = options["timeline"] if is_last else None  # the timeline shows the last row only
            timeline = trace.Trace(rank_count, per_host) if timeline_path else None
            if timeline and what_ifs.servers is not None:
                raise click.UsageError("--timeline shows ranks that sum: it has no parameter servers")
            note_activity = timeline.note_activity if timeline else None
            outcome = run.simulate_plan(plan, rank_count, what_ifs, options["steps"], options["seed"], note_activity)
            times = (outcome.step, outcome.compute, outcome.waiting, outcome.exposed)
            rate = f"{outcome.rows / outcome.step:.0f}"
            table.add_row(str(rank_count), row_name, *(f"{1e3 * seconds:.2f}" for seconds in times), rate)
            assumptions += [assumption for assumption in outcome.assumptions if assumption not in assumptions]
            if outcome.note and outcome.note not in notes:
                notes.append(outcome.note)
            if timeline and timeline_path:
                timeline.write_file(timeline_path)
    console = Console()
    console.print(table)
    console.print(
        "Times in ms. slowest: waiting for the slowest rank. exposed: transfers and other collectives, not hidden."
    )
    for note in notes:
        console.print(note + ".", highlight=False)
    if assumptions:
        console.print("assumed: " + "; ".join(assumptions) + ".", highlight=False)
    if options["timeline"]:
        console.print(f"the timeline is in {options['timeline']}: open it at https://ui.perfetto.dev", highlight=False)


def _show_servers(plan: plan_file.Plan | None, ranks: Sequence[int] | None, options: dict[str, Any]) -> None:
    """Print the number of parameter servers and their efficiency, by three models."""
    compute_option, transfer_option, ratio = options["compute"], options["transfer"], options["bandwidth_ratio"]
    if ranks is None:
        raise click.UsageError("--servers needs the numbers of workers, as --ranks 4,8,16")
    if plan is None and (compute_option is None or transfer_option is None):
        raise click.UsageError("--servers needs a plan, or --compute TIME and --transfer TIME")
    table = Table("workers", "T_t/T", "lemma 3.2 (HTC)", "eq. 6 (XAI)", f"exact, for {options['target']:.0%}")
    for workers in ranks:
        compute_seconds, transfer_seconds = compute_option, transfer_option  # seconds of a step
        if plan is not None:
            step = program.make_program(plan, workers)
            network = predict.Links(plan).network
            compute_seconds = step.compute if compute_option is None else compute_option
            transfer_seconds = 2 * network.estimate_message(step.bytes) if transfer_option is None else transfer_option
        if compute_seconds <= 0 or transfer_seconds <= 0:
            raise click.UsageError("--servers: the times of --compute and --transfer are above 0")
        transfer_share = xai.transfer_share(transfer_seconds, compute_seconds + transfer_seconds)
        least_servers = queueing.find_least_servers(
            workers, compute_seconds, transfer_seconds, ratio, options["target"]
        )
        # Lemma 3.2 writes the transfer (pull and push) as 2 S_p / B_ps. Here S_p is half of the transfer in seconds,
        # and B_ps the bandwidth of a server relative to that of a worker.
        htc_estimate = htc.servers(workers, transfer_seconds / 2, ratio, compute_seconds)
        cells = []
        for estimate in (htc_estimate, xai.servers(workers, transfer_share, ratio), Estimate(least_servers)):
            # With more servers than `workers / ratio` the efficiency is the same. A formula may give infinitely many.
            servers = int(min(estimate.value, ceil(workers / ratio)))
            efficiency = queueing.compute_efficiency(workers, servers, compute_seconds, transfer_seconds, ratio)
            outside_text = f"\n[red]outside its domain:[/] {estimate.outside}" if estimate.outside else ""
            servers_text = f"{estimate.value:.0f}" if estimate.value < 1e6 else f"{estimate.value:.2g}"
            cells.append(f"{servers_text} ({efficiency:.0%}){outside_text}")
        table.add_row(str(workers), f"{transfer_share:.3f}", *cells)
    console = Console()
    console.print(table)
    console.print(
        "in brackets: the efficiency that so many servers give by the exact model, a closed queueing network in which "
        "transfers hide behind no computation; lemma 3.2 assumes that all hide.",
        highlight=False,
    )
