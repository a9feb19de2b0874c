"""The command `matex plan`: its options, and the calls that check and carry out the request."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from matex_tf.costs import collectives
from matex_tf.launch import command_line, run_options
from matex_tf.launch.option_types import BYTES, HOSTS, NETWORK, NUMBERS, RANKS, TIME, make_count
from matex_tf.launch.planning import checks, ranks, requests
from matex_tf.launch.planning import run as planning
from matex_tf.launch.run_options import Run
from matex_tf.planner import choice, plan_file
from matex_tf.planner.measurement import phantoms, started
from matex_tf.planner.plan_file import PlanFileError


@click.command(
    "plan",
    context_settings={"allow_interspersed_args": False},
    short_help="Predict step time, efficiency and memory of SCRIPT.py on absent ranks.",
)
@click.option("--ranks", type=RANKS, default="1,2,4,...,64", metavar="LIST", help="Ranks to predict: 1,2,4,...,1024.")
@click.option("--ranks-per-host", type=make_count("ranks"), help="Ranks on each host. Default: the cores of this host.")
@click.option(
    "--network", type=NETWORK, default="",
    help=f"The network between hosts: {', '.join(collectives.NETWORKS)}, or latency in seconds and bytes per "
    f"second as 20e-6:3e9. Default: as an earlier run measured it, else {planning.DEFAULT_NETWORK}.",
)  # fmt: skip
@click.option(
    "--host",
    "hosts",
    type=HOSTS,
    default="",
    metavar="A,B",
    help="Hosts for ranks that time the network, and for --check.",
)
@click.option("--scaling", type=click.Choice(["strong", "weak"]), help="As MATEX_SCALING.")
@click.option(
    "--batch", "batches", type=NUMBERS, default=(), metavar="ROWS,...", help="Also predict for other global batches."
)
@click.option(
    "--target", type=click.FloatRange(0, 1), default=choice.TARGET, help="The least efficiency of the chosen ranks."
)
@click.option(
    "--deadline", type=TIME, default=0.0, help="Choose the fewest ranks that train --epochs in this time: 6h."
)
@click.option("--epochs", type=make_count("epochs"), default=0, help="With --deadline: the number of epochs.")
@click.option(
    "--epoch-steps",
    type=make_count("steps"),
    default=0,
    help="Steps of an epoch of the script alone. Default: counted.",
)
@click.option("--memory", type=BYTES, default=0.0, help="The memory of a rank, as 16GiB; here: its share of this host.")
@click.option(
    "--steps", type=click.IntRange(phantoms.LEAST), default=phantoms.STEPS, help="Steps to train at each size."
)
@click.option(
    "--json", metavar="FILE", default="",
    help="Write the measurements and the table to this file; with --check its output.",
)  # fmt: skip
@click.option("--chart", metavar="FILE", default="", help="Write a chart to this SVG file.")
@click.option(
    "--check", is_flag=True, help="Run the script of PLAN.json on -n ranks; compare prediction and measurement."
)
@click.option("-n", "run_on", type=RANKS, default="2", help="With --check: numbers of ranks, such as 2,4.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def plan_command(ctx: click.Context, /, **values: Any) -> int:
    """Measure SCRIPT.py here as rank 0 of absent ranks; predict its time and memory on them, and choose.

    \b
    matex plan --ranks 1,2,4,...,1024 --network infiniband train.py --epochs 3
    matex plan --check -n 2,4 plan.json
    """
    script = values["script"]
    if not script:
        raise click.UsageError("no script is named. For example: matex plan --ranks 1,2,4,...,1024 train.py")
    if values["check"] and len(script) > 1:
        raise click.UsageError(f"--check takes a plan only; {script[1]} must precede it")

    def launch(
        ranks: int, target: Sequence[str], options: Sequence[str], environment: Mapping[str, str] | None
    ) -> list[str]:
        """The command line that starts `target` on `ranks` ranks, as `matex run` does."""
        run = Run(ranks=ranks, target=list(target), options=list(options), environment=environment)
        return command_line.make_command_line(run)

    checks.check_options(values, _list_given_options(ctx), script)
    try:
        with started.catch_signals():
            if values["check"]:
                plan, hosts = plan_file.load_plan(script[0]), values["hosts"]
                checks.check_runs(plan, values["run_on"], hosts, launch)
                return ranks.check_predictions(plan, values["run_on"], launch, hosts, values["json"])
            run_options.check_target(Run(ranks=1, target=list(script)))
            request = requests.read_options(values)
            checks.check_request(request)
            checks.check_hosts(request.hosts, launch)
            return planning.plan_script(request, script, launch)
    except (phantoms.NotMeasured, PlanFileError, OSError) as error:
        print(f"matex plan: {error}", file=sys.stderr)
        return 1


def _list_given_options(ctx: click.Context) -> dict[str, str]:
    """The parameters on the command line, with the option names used there."""
    return {
        parameter.name: parameter.opts[-1]
        for parameter in ctx.command.params
        if parameter.name and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
