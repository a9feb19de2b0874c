"""The report of a search: one self-contained HTML file, with the charts and style of a run's report."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from matex_tf.monitor.report.charts import COLOURS, Line, format_number, make_chart, make_curves, summarize_lines
from matex_tf.monitor.report.template import Figures, assemble_page, format_facts
from matex_tf.tune import rungs, setup, space_file
from matex_tf.tune.database import Record
from matex_tf.tune.objective import Objective
from matex_tf.tune.report import coordinates, importance
from matex_tf.tune.space import Space, format_value
from matex_tf.tune.trials.trial import DONE, FAILED

_LEGEND_TRIALS = 12  # trials with an entry in the legend
_PERCENTILE = 90  # percentile of the values at which the chart is cut off
_GREY = 6  # index of grey among the line colours


def is_search(folder: Path) -> bool:
    return (folder / setup.NOTE).is_file()


def format_page(folder: Path) -> str:
    """The page of the search in `folder`, which may still be running. Raises NoSearchError, DatabaseError."""
    database, search = setup.open_search(folder)
    trials, task = database.list_trials(search.id), database.read_task(search.id)
    database.close()
    settings = setup.restore_settings(search)
    spec = space_file.read_space(search.space, settings.name)
    objective = spec.objective
    # The trials with a value, best first, and then the failed ones:
    ordered_trials = [*rungs.sort_trials(trials, objective), *(trial for trial in trials if trial.state == FAILED)]
    best_trial = ordered_trials[0] if ordered_trials and ordered_trials[0].value is not None else None
    command, files = setup.format_trial_command(folder, search, settings, spec, best_trial) if best_trial else ("", ())
    states = Counter(trial.state for trial in trials)
    best_text = (
        f"{objective.name} {best_trial.value:.6g}, trial {best_trial.number}"
        if best_trial
        else "no trial has come to a value"
    )
    facts = {
        "objective": search.objective,
        "best": best_text,
        "trials": ", ".join(f"{count} {state}" for state, count in states.items()) + f", of {settings.trials}",
        "engine": f"{settings.engine}, seed {settings.seed}",
        "rungs": ", ".join(map(str, settings.rungs)),
        "epochs": str(sum(len(trial.curve) for trial in trials)),
        "in trials": f"{sum(trial.seconds for trial in trials):.0f} s",
        "ranks": str(settings.ranks),
        "task": ", ".join(f"{name} {value}" for name, value in (task or {}).items() if value is not None),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(search.began)),
        "database": str(database.path),
    }  # fmt: skip
    title = f"matex tune {' '.join(search.target)}"
    figures = Figures()
    body = [
        f"<h1>{escape(title)}</h1>",
        format_facts({name: [value] for name, value in facts.items()}),
        f'<p class="said">{escape(command)}</p>' if best_trial else "",
        *(f"<p>with {escape(name)}</p>" for name in files),
        _format_legend(ordered_trials, objective),
        *_draw_charts(trials, ordered_trials, objective, figures),
        _draw_importance(spec.space, ordered_trials),
        _draw_coordinates(spec.space, ordered_trials, objective),
        _format_table(spec.space, ordered_trials, objective),
    ]  # fmt: skip
    return assemble_page(title, body, figures.charts)


def _name_trial(record: Record) -> str:
    return f"trial {record.number}"


def _choose_colour(index: int, record: Record) -> tuple[int, bool]:
    """(colour, whether the line is faint) of the trial at `index`, best first: trials in the legend stand out."""
    is_in_legend = index < _LEGEND_TRIALS and record.value is not None
    return (index % COLOURS, False) if is_in_legend else (_GREY, True)


def _format_legend(ordered_trials: Sequence[Record], objective: Objective) -> str:
    """The best trials and their colours. A click on a trial highlights it in all charts."""
    buttons = "".join(
        f'<button data-of="{_name_trial(trial)}" class="k{index % COLOURS}">{_name_trial(trial)} '
        f"<small>{format_number(trial.value)}</small></button>"
        for index, trial in enumerate(ordered_trials[:_LEGEND_TRIALS]) if trial.value is not None
    )  # fmt: skip
    return f'<p class="legend">{escape(objective.name)} of the best: {buttons}</p>' if buttons else ""


def _draw_charts(
    trials: Sequence[Record], ordered_trials: Sequence[Record], objective: Objective, figures: Figures
) -> Iterator[str]:
    """The curves of all trials, and the best value so far after each trial."""
    values = [point.value for trial in ordered_trials for point in trial.curve if math.isfinite(point.value)]
    if not values:
        return
    drawn_trials = [
        (index, trial)
        for index, trial in enumerate(ordered_trials)
        if any(math.isfinite(point.value) for point in trial.curve)
    ]
    # High values are cut off if low ones are wanted, such as the losses of trials that diverge.
    max_shown = math.inf if objective.maximize else float(np.percentile(values, _PERCENTILE))
    lines = []
    for index, trial in reversed(drawn_trials):  # the best are drawn on top
        colour, is_faint = _choose_colour(index, trial)
        epochs = np.array([point.epoch for point in trial.curve], float)
        pieces = _split_ascending(epochs, np.array([point.value for point in trial.curve]))
        lines += [Line(_name_trial(trial), colour, [piece], "faint" if is_faint else "") for piece in pieces]
    last_epoch = max(float(point.epoch) for _, trial in drawn_trials for point in trial.curve)
    curves = make_curves(lines, end=last_epoch)
    unit = "after each epoch of each trial"
    chart = make_chart(objective.name, unit, curves, "epoch", from_zero=False, max_shown=max_shown)
    yield figures.add_figure(chart, summarize_lines(lines)[::-1])
    completed_trials = [trial for trial in trials if trial.state == DONE and trial.value is not None]
    if len(completed_trials) > 1:
        numbers = np.array([trial.number for trial in completed_trials], float)
        costs = np.minimum.accumulate([objective.compute_cost(trial.value or 0.0) for trial in completed_trials])
        best_values = -costs if objective.maximize else costs  # the cost of a value to be maximized is its negative
        best_line = Line("best so far", 0, [(numbers, best_values)])
        unit = f"{objective.name}, of completed trials"
        chart = make_chart("best so far", unit, make_curves([best_line], end=numbers[-1]), "trial", from_zero=False)
        yield figures.add_figure(chart, summarize_lines([best_line]))


def _split_ascending(epochs: np.ndarray, values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split a curve: a second call of `fit` starts again with epoch 1."""
    borders = np.flatnonzero(np.diff(epochs) <= 0) + 1
    return list(zip(np.split(epochs, borders), np.split(values, borders)))


def _draw_importance(space: Space, ordered_trials: Sequence[Record]) -> str:
    """The importance of each parameter as bars."""
    configs = [trial.config for trial in ordered_trials]
    shares = [(parameter.name, importance.measure_importance(parameter, configs)) for parameter in space.parameters]
    known_shares = sorted(((name, share) for name, share in shares if share is not None), key=lambda pair: -pair[1])
    if not known_shares:
        return f"<h2>Importance</h2><p>Fewer than {importance.MIN_TRIALS} trials: not computed.</p>"
    rows = "".join(
        f'<tr><th>{escape(name)}<td class="bar"><span class="sums" style="width:{share:.1%}"></span><td>{share:.0%}'
        for name, share in known_shares
    )
    return (
        "<h2>Importance</h2><p>How much of the order of the trials each parameter explains by itself, beyond chance "
        "(&epsilon;&sup2; of ranks). Joint effects of parameters are not measured.</p>"
        f'<table class="bars">{rows}</table>'
    )


def _draw_coordinates(space: Space, ordered_trials: Sequence[Record], objective: Objective) -> str:
    """All trials as lines through all parameters. The last axis is the ranking, with the best trial at the top."""
    if not ordered_trials:
        return ""
    trial_count, lines = len(ordered_trials), []
    for index, trial in enumerate(ordered_trials):
        colour, is_faint = _choose_colour(index, trial)
        config = ", ".join(f"{name} {format_value(value)}" for name, value in trial.config.items())
        value = trial.state if trial.value is None else f"{objective.name} {trial.value:.4g}"
        text = f"{_name_trial(trial)}: {value}; {config}"
        positions = [coordinates.find_position(parameter, trial.config) for parameter in space.parameters]
        positions.append(1 - index / max(trial_count - 1, 1))  # on the axis of places: 1 for the best
        style = f"line c{colour}" + (" faint" if is_faint else "")
        lines.append(coordinates.Line(_name_trial(trial), text, style, positions))
    place_axis = ("place", [(1.0, "best"), (0.0, str(trial_count))])
    axes = [*map(coordinates.make_axis, space.parameters), place_axis]
    picture = coordinates.draw_coordinates(axes, lines[::-1])  # the best are drawn on top
    return (
        "<h2>Parameters</h2><p>Each line is a trial. If a parameter has no value, the line passes below its axis.</p>"
        f'<figure class="wide">{picture}</figure>'
    )


def _format_table(space: Space, ordered_trials: Sequence[Record], objective: Objective) -> str:
    names = ("trial", objective.name, "epochs", "state", "s", *space.names)
    heading = "".join(f"<th>{escape(name)}" for name in names)
    rows = []
    for trial in ordered_trials:
        cells = [
            str(trial.number), "-" if trial.value is None else f"{trial.value:.6g}",
            str(len(trial.curve)), f"{trial.state}: {trial.why}" if trial.state == FAILED else trial.state,
            f"{trial.seconds:.0f}", *space.format_values(trial.config),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells))
    return (
        f"<details open><summary>Each trial, best first</summary><table><tr>{heading}{''.join(rows)}</table></details>"
    )
