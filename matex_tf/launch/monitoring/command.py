"""The commands `matex top` and `matex report`, for recorded runs; `report` is also for searches of `matex tune`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from matex_tf.deploy.command import NAMESPACE
from matex_tf.launch.monitoring.job_watch import JobWatch, WatchedState, find_run_folder
from matex_tf.monitor import picture, recording, waits
from matex_tf.monitor.prometheus import format_metrics
from matex_tf.monitor.report import page
from matex_tf.planner import plan_file
from matex_tf.planner.predict import Predictor
from matex_tf.tune.database import DatabaseError
from matex_tf.tune.report import page as search_page
from matex_tf.tune.setup import NoSearchError
from matex_tf.world import child_process

_PAUSE = 1.0  # seconds between two displays
_METRICS_PAUSE = 15.0  # seconds; the usual scrape interval of Prometheus
_LINES = 40  # height of the display without a terminal


@click.command("top", short_help="Watch a recorded run, rank by rank.")
@click.argument("run")
@NAMESPACE
@click.option("--once", is_flag=True, help="Display the run once and exit; the default without a terminal.")
@click.option(
    "--prometheus", metavar="FILE.prom", help="Write the figures to this file, for node exporter; display nothing."
)
def show_top(run: str, namespace: str, once: bool, prometheus: str | None) -> int:
    """Watch the run recorded in the folder RUN: the resources, activity and waiting of each rank.

    RUN may also be a Slurm job number or a Kubernetes job name. If the job is queued, for its first start or a restart,
    the command waits.

    The command reads files only. Start it on any host that sees the folder, and end it at any time. It ends with the
    run.
    """
    console = Console()
    try:
        watch = JobWatch(find_run_folder(run, namespace))
        if prometheus:
            with child_process.handle_signals((signal.SIGTERM, signal.SIGHUP), child_process.exit_for_signal):
                return _write_metrics(watch, Path(prometheus), once)
        if once or not console.is_terminal:
            console.print(_draw_run(watch.look_at_run(), _LINES))
            return 0
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                state = watch.look_at_run()
                live.update(_draw_run(state, console.height), refresh=True)
                if state.is_over:
                    return 0
                time.sleep(_PAUSE)
    except (recording.RecordingError, OSError) as error:
        print(f"matex top: {error}", file=sys.stderr)
        return 1


def _draw_run(state: WatchedState, height: int) -> RenderableType:
    display = [picture.draw_run(state.run, height)] if state.run is not None else []
    return Group(*display, *([Text(state.job_text)] if state.job_text else []))


def _write_metrics(watch: JobWatch, metrics_path: Path, once: bool) -> int:
    """Rewrite `metrics_path` every 15 s while ranks run. With `once`, write and leave the file.

    Without `once` the file is removed at the end of the run or of this command, so that old figures do not appear
    current. While the job waits for a restart, the file stays unchanged.
    """
    # The node exporter reads files that end in .prom.
    temporary_path = metrics_path.with_name(f"{metrics_path.name}.{os.getpid()}.part")
    last_text = ""
    try:
        while True:
            state = watch.look_at_run()
            if state.job_text not in ("", last_text):  # no rank runs, for this reason
                last_text = state.job_text
                print(f"matex top: {last_text}", file=sys.stderr, flush=True)
            if state.run is not None and not (state.job_text and metrics_path.exists()):
                temporary_path.write_text(format_metrics(state.run))
                temporary_path.replace(metrics_path)
            if once or state.is_over:
                return 0
            time.sleep(_METRICS_PAUSE)
    finally:
        temporary_path.unlink(missing_ok=True)
        if not once:
            metrics_path.unlink(missing_ok=True)


@click.command("report", short_help="Make one HTML page of recorded runs, or of a search.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN ...]")
@NAMESPACE
@click.option(
    "-o", "--output", metavar="FILE", help="The page. Default: RUN/report.html, for several runs RUN/runs.html."
)
@click.option(
    "--plan", metavar="PLAN.json", help="A plan of `matex plan --json`: compare its prediction with the measurement."
)
def write_report(runs: tuple[str, ...], namespace: str, output: str | None, plan: str | None) -> int:
    """Make one HTML page of the run in the folder RUN, of several runs for comparison, or of a search.

    RUN may also be a Slurm job number or a Kubernetes job name. The run may still be active.

    The page needs no network.
    """
    try:
        folders = [find_run_folder(run, namespace) for run in runs]
        page_path = Path(output or os.path.join(folders[0], "report.html" if len(folders) == 1 else "runs.html"))
        if search_folders := [folder for folder in folders if search_page.is_search(Path(folder))]:
            if plan:
                raise click.UsageError("--plan goes with the report of a run; this is a search")
            if len(folders) > 1:
                raise click.UsageError(f"{search_folders[0]} is a search, which has a page of its own; name it alone")
            text = search_page.format_page(Path(folders[0]))
        else:
            runs_read = [_open_run(folder) for folder in folders]
            predictions = [_describe_prediction(run, plan) for run in runs_read] if plan else []
            text = page.format_page(*runs_read, predictions=predictions)
        page_path.write_text(text)
    except (recording.RecordingError, plan_file.PlanFileError, NoSearchError, DatabaseError, OSError) as error:
        print(f"matex report: {error}", file=sys.stderr)
        return 1
    print(page_path)
    return 0


def _open_run(folder: str) -> recording.Run:
    """Open the records. Raises RecordingError if there are none; for a waiting job, its text is the job's state."""
    try:
        return recording.open_run(folder)
    except recording.NothingRecordedError:
        state = JobWatch(folder).look_at_run()
        if state.run is None:
            raise recording.RecordingError(f"{folder}: {state.job_text}") from None
        return state.run


def _describe_prediction(run: recording.Run, path: str) -> str:
    """A step as predicted by the plan in the file `path`, compared with the measured step."""
    start = run.starts[-1]
    prediction = Predictor(plan_file.load_plan(path)).predict_step(start.size)
    # `count_points` divides the limit of samples on a page among the ranks. Only rank 0's samples are read here.
    rank_0 = recording.Series(recording.read_samples(start.files[0], recording.count_points(len(start.files))))
    interval = f"({prediction.low * 1e3:.1f} - {prediction.high * 1e3:.1f})"
    lines = [f"a step of {prediction.ranks} ranks, predicted: {prediction.step * 1e3:.1f} ms {interval}"]
    if measured := waits.compute_mean_step(rank_0):
        lines.append(f"measured on rank 0: {measured.whole * 1e3:.1f} ms, {measured.whole / prediction.step:.2f} of it")
    return "\n".join(lines)
