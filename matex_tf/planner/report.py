"""The output of `matex plan`: heading, tables of predictions and of strategies, closing remarks, JSON, and a chart.

Each predicted number has a mark, measured, extrapolated or assumed, which is shown as a sign before the number
(`plan_file.SIGNS`). The plan was measured with as many copies of the script at once as a host has ranks, because these
share its cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import log2
from typing import Any

from rich.table import Table

from matex_tf import settings
from matex_tf.planner.choice import Choice, describe_no_epoch, find_most_rows
from matex_tf.planner.compute import count_measured_rows
from matex_tf.planner.plan_file import SIGNS, Plan, Size
from matex_tf.planner.predict import Prediction, Predictor
from matex_tf.planner.strategies import Price, Refusal, choose_strategy


def format_table(plan: Plan, predictions: Sequence[Prediction]) -> Table:
    """The table of predictions, with a row for each number of ranks; milliseconds, MiB."""
    table = Table(box=None, pad_edge=False)
    rows = [_format_cells(plan, prediction) for prediction in predictions]
    for column in rows[0]:
        table.add_column(column, justify="right")
    for cells in rows:
        table.add_row(*cells.values())
    return table


def _format_cells(plan: Plan, prediction: Prediction) -> dict[str, str]:
    """The cells of the table of predictions, by column, each with the sign of its mark.

    A step is the sum of computation, of sums of gradients that do not overlap with it (exposed), of other collectives
    (small), and of waiting for the slowest rank.
    """
    sign, compute_sign, link_sign = (
        SIGNS[mark] for mark in (prediction.mark, prediction.compute_mark, prediction.link_mark)
    )
    cells = {
        "ranks": str(prediction.ranks),
        "hosts": str(prediction.hosts),
        "rows/rank": str(prediction.rows or "all"),
        "step ms": f"{sign}{prediction.step * 1e3:.1f}",
        "range": f"{sign}{prediction.low * 1e3:.1f} - {prediction.high * 1e3:.1f}",
        "compute": f"{compute_sign}{prediction.compute * 1e3:.1f}",
        "exposed": f"{link_sign}{prediction.exposed * 1e3:.1f}",
        "small": f"{link_sign}{prediction.small * 1e3:.1f}",
        "waiting": f"{sign}{prediction.waiting * 1e3:.1f}",
    }
    if prediction.input:
        cells["input"] = f"{compute_sign}{prediction.input.seconds * 1e3:.1f}"
        cells["MB read"] = f"{compute_sign}{_format_megabytes(prediction.input.bytes)}"
    rate = prediction.rows_a_second if plan.rows else 1 / prediction.step
    cells["rows/s" if plan.rows else "steps/s"] = f"{sign}{rate:.4g}" if rate < 9999.5 else f"{sign}{rate:.0f}"
    cells["efficiency"] = f"{SIGNS[prediction.efficiency_mark]}{prediction.efficiency:.2f}"
    if plan.epoch_steps:
        steps = plan.epoch_steps / (prediction.ranks if plan.scaling == "weak" else 1)
        minutes = steps * prediction.step / 60
        cells["epoch min"] = f"{sign}{minutes:.1f}" if minutes >= 1 else f"{sign}{minutes:.3f}"
    cells["MiB/rank"] = f"{compute_sign}{prediction.memory / 2**20:.0f}"
    return cells


def format_heading(plan: Plan, predictor: Predictor) -> str:
    """The lines above the table, which describe the measurements."""
    copies = max(size.copies for size in plan.sizes)
    lines = [
        f"measured here: {_describe_sizes(plan)}",
        f"with {copies} at once: {_describe_computation(plan, predictor)}",
    ]
    for link in plan.links:
        speed = link.bytes[-1] / link.seconds[-1] / 1e9
        lines.append(
            f"link, {link.scope}, {link.ranks} ranks: {_format_microseconds(link.seconds[0])} us, "
            f"{speed:.2f} GB/s of sums" + (f", measured by an earlier run: {link.kept}" if link.kept else "")
        )
    small = describe_kinds([collective.kind for collective in plan.collectives])
    lines.append(f"{settings.format_bytes(plan.gradient_bytes)} of gradients in {len(plan.gradients)}; {small} a step")
    lines += _describe_input(plan)
    if plan.epoch_steps:
        lines.append(f"an epoch of the script alone: {plan.epoch_steps} steps")
    else:
        lines.append(f"epoch: its steps {describe_no_epoch(plan)}")
    return "\n".join(lines)


def _describe_input(plan: Plan) -> list[str]:
    """The cost of reading and decoding a batch, on the fewest and on the most ranks that were measured."""
    measured_inputs = [(size.ranks, size.input) for size in plan.sizes if size.input is not None]
    if not measured_inputs:
        return ["input: not measured, since steps take no batches of a tf.data pipeline before they begin"]
    cost_texts = [
        f"rank 0 of {ranks} {cost.seconds * 1e3:.3g} ms of a core and {settings.format_bytes(cost.bytes)}"
        for ranks, cost in dict([measured_inputs[0], measured_inputs[-1]]).items()  # one item if both are the same
    ]
    return [f"to read and decode a batch takes {', and '.join(cost_texts)}"]


def _format_megabytes(byte_count: float) -> str:
    megabytes = byte_count / 1e6
    return "<0.01" if 0 < megabytes < 0.005 else f"{megabytes:.{2 if megabytes < 100 else 0}f}"


def _describe_computation(plan: Plan, predictor: Predictor) -> str:
    """The seconds of a step's computation: a constant, and a part for each row, as far as that was measured."""
    fixed_seconds, row_seconds = predictor.compute.split_seconds()
    text = f"{fixed_seconds * 1e3:.1f} ms a step"
    if not plan.rows:
        return f"{text} on any number of ranks, each of which computes the whole batch"
    if count_measured_rows(plan) < 2:
        return f"{text} of {plan.sizes[0].rows} rows; no other number of rows was measured"
    return f"{text} + {row_seconds * 1e3:.3g} ms a row"


def _format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-5 else f"{seconds * 1e6:.1f}"


def describe_kinds(kinds: Sequence[str]) -> str:
    """Counts the collectives of each kind, without the sums of gradients."""
    counts = Counter(kinds).items()
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts) or "no other collectives"


def _describe_sizes(plan: Plan) -> str:
    """The measured numbers of ranks, of concurrent copies, and of steps. A `Size` is one measurement: the script as
    rank 0 of `ranks`.
    """
    sizes_by_copies: dict[int, list[Size]] = {}
    for size in plan.sizes:
        sizes_by_copies.setdefault(size.copies, []).append(size)
    group_texts = []
    for copies, sizes in sorted(sizes_by_copies.items()):
        step_counts = sorted({len(size.steps) for size in sizes})
        steps_text = f"{step_counts[0]}" if len(step_counts) == 1 else f"{step_counts[0]} to {step_counts[-1]}"
        ranks_text = ", ".join(str(size.ranks) for size in sizes)
        copies_text = f"{copies} at once" if copies > 1 else "alone"
        group_texts.append(f"rank 0 of {ranks_text} ({copies_text}, {steps_text} step{'s' * (step_counts[-1] > 1)})")
    return "; ".join(group_texts)


def format_closing(plan: Plan, predictor: Predictor, memory: float = 0.0) -> str:
    """The lines below the table, which explain the signs and list the assumptions."""
    lines = []
    if memory and plan.rows and count_measured_rows(plan) > 1:
        rows = find_most_rows(predictor, memory)
        lines.append(f"{memory / 2**30:.2f} GiB: up to {rows} rows on a rank" if rows else "no row fits the memory")
    lines.append(
        "~ extrapolated: beyond twice what was measured, ranks of a host that is not full, or a link of an earlier "
        "run.  ? assumed.  No sign: measured, or between measured sizes."
    )
    lines += [f"assumed: {assumption}" for assumption in plan.assumptions]
    return "\n".join(lines)


def format_strategies(prices: Sequence[Price]) -> Table:
    """The table of the strategies that are available on the same ranks; milliseconds, megabytes, MiB."""
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    for name in ("step ms", "range", "of allreduce", "optimizer MB/rank", "MiB/rank"):
        table.add_column(name, justify="right")
    table.add_column("result")
    for price in prices:
        step, sign = price.step, SIGNS[price.step.mark]
        table.add_row(
            price.strategy, f"{sign}{step.step * 1e3:.1f}", f"{sign}{step.low * 1e3:.1f} - {step.high * 1e3:.1f}",
            f"{sign}{step.step / prices[0].step.step:.2f}", f"{price.slots / 1e6:.1f}",
            f"{SIGNS[price.memory_mark]}{price.memory / 2**20:.0f}",
            "statistical" if price.is_statistical else "that of the script alone",
        )  # fmt: skip
    return table


def make_strategies_json(prices: Sequence[Price], refused: Sequence[Refusal], memory: float = 0.0) -> dict[str, Any]:
    """The strategies for one number of ranks as JSON; seconds, bytes."""
    best, reason = choose_strategy(prices, memory)
    return {
        "ranks": prices[0].step.ranks,
        "prices": [
            {
                "strategy": price.strategy, "statistical": price.is_statistical, "optimizer_bytes": price.slots,
                "memory": price.memory, "memory_mark": price.memory_mark, "mark": price.step.mark,
                **{name: getattr(price.step, name) for name in ("step", "low", "high", "compute", "exposed")},
            }
            for price in prices
        ],
        "cannot": {refusal.strategy: refusal.why for refusal in refused},
        "best": best,
        "reason": reason,
    }  # fmt: skip


def make_json(plan: Plan, predictions: Sequence[Prediction], choice: Choice) -> dict[str, Any]:
    """The predictions as JSON; seconds, bytes."""
    return {
        "script": list(plan.script),
        "predictions": [
            {**asdict(prediction), "mark": prediction.mark, "efficiency_mark": prediction.efficiency_mark}
            for prediction in predictions
        ],
        "best": choice.best.ranks if choice.best else None,
        "reason": choice.reason,
        "assumptions": list(plan.assumptions),
    }


_WIDTH, _HEIGHT, _MARGIN = 640, 360, 60  # of the chart, in pixels


def draw_chart(predictions: Sequence[Prediction]) -> str:
    """Step time (with its range) and efficiency over ranks, as SVG; logarithmic axes for ranks and milliseconds."""
    max_seconds = max(prediction.high for prediction in predictions)
    min_seconds = min(prediction.low for prediction in predictions)
    rank_doublings = max(log2(predictions[-1].ranks), 1.0)  # from the left end of the chart to the right end
    time_doublings = max(log2(max_seconds / min_seconds), 1.0)  # from the bottom to the top

    def format_point(ranks: int, fraction: float) -> str:
        """The text "x,y" of a point at `fraction` of the height of the chart."""
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * log2(ranks) / rank_doublings
        return f"{x:.1f},{_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * fraction:.1f}"

    def scale_seconds(seconds: float) -> float:
        """The fraction of the height for seconds of a step."""
        return log2(seconds / min_seconds) / time_doublings

    band_points = [format_point(prediction.ranks, scale_seconds(prediction.high)) for prediction in predictions]
    band_points += [
        format_point(prediction.ranks, scale_seconds(prediction.low)) for prediction in reversed(predictions)
    ]
    step_points = " ".join(format_point(prediction.ranks, scale_seconds(prediction.step)) for prediction in predictions)
    efficiency_points = " ".join(
        format_point(prediction.ranks, min(prediction.efficiency, 1.0)) for prediction in predictions
    )
    texts = [_draw_text(format_point(prediction.ranks, -0.07), str(prediction.ranks)) for prediction in predictions]
    ticks = [f"{min_seconds * 2 ** (time_doublings * i / 4) * 1e3:.3g} ms" for i in range(5)]
    texts += [_draw_text(format_point(1, i / 4), tick, "end") for i, tick in enumerate(ticks)]
    texts += [_draw_text(format_point(predictions[-1].ranks, i / 4), f"{i * 25}%", "start") for i in range(5)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<polygon points="{" ".join(band_points)}" fill="#1f77b4" opacity="0.2"/>\n'
        f'<polyline points="{step_points}" fill="none" stroke="#1f77b4" stroke-width="2"/>\n'
        f'<polyline points="{efficiency_points}" fill="none" stroke="#d62728" stroke-width="2"/>\n' + "\n".join(texts)
        + f'\n<text x="{_MARGIN}" y="24" fill="#1f77b4">step</text>'
        + f'<text x="{_WIDTH - _MARGIN - 60}" y="24" fill="#d62728">efficiency</text>\n</svg>\n'
    )  # fmt: skip


def _draw_text(position: str, text: str, anchor: str = "middle") -> str:
    x, y = position.split(",")
    shift = {"middle": 0, "end": -6, "start": 6}[anchor]
    return f'<text x="{float(x) + shift:.1f}" y="{y}" text-anchor="{anchor}">{text}</text>'
