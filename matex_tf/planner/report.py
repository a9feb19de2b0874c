"""The output of `matex plan`: a table, JSON, and a chart."""

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
    made = Table(box=None, pad_edge=False)
    for name in ("ranks", "hosts", "rows/rank", "step ms", "range", "compute", "exposed", "small", "waiting",
                 *(["input", "MB read"] if predictions[0].input else [])):  # fmt: skip
        made.add_column(name, justify="right")
    for name in (
        "rows/s" if plan.rows else "steps/s",
        "efficiency",
        *(["epoch min"] if plan.epoch_steps else []),
        "MiB/rank",
    ):
        made.add_column(name, justify="right")
    for one in predictions:
        epoch = plan.epoch_steps * one.step / 60 / (one.ranks if plan.scaling == "weak" else 1)
        sign, shares = SIGNS[one.mark], SIGNS[one.efficiency_mark]
        rate = one.rows_a_second if plan.rows else 1 / one.step
        read = [f"{one.input.seconds * 1e3:.1f}", _format_megabytes(one.input.bytes)] if one.input else []
        parts = [f"{SIGNS[one.compute_mark]}{one.compute * 1e3:.1f}"]
        parts += [f"{SIGNS[one.link_mark]}{part * 1e3:.1f}" for part in (one.exposed, one.small)]
        made.add_row(
            str(one.ranks), str(one.hosts), str(one.rows or "all"), f"{sign}{one.step * 1e3:.1f}",
            f"{sign}{one.low * 1e3:.1f} - {one.high * 1e3:.1f}", *parts, f"{sign}{one.waiting * 1e3:.1f}",
            *(f"{SIGNS[one.compute_mark]}{each}" for each in read),
            f"{sign}{f'{rate:.4g}' if rate < 1e4 else f'{rate:.0f}'}", f"{shares}{one.efficiency:.2f}",
            *([f"{sign}{epoch:.{1 if epoch >= 1 else 3}f}"] if plan.epoch_steps else []),
            f"{SIGNS[one.compute_mark]}{one.memory / 2**20:.0f}",
        )  # fmt: skip
    return made


def format_heading(plan: Plan, predictor: Predictor) -> str:
    """Describes the measurements."""
    at_once = max(size.copies for size in plan.sizes)
    lines = [
        f"measured here: {_describe_sizes(plan)}",
        f"with {at_once} at once: {_describe_computation(plan, predictor)}",
    ]
    for link in plan.links:
        speed = link.bytes[-1] / link.seconds[-1] / 1e9
        lines.append(
            f"link, {link.scope}, {link.ranks} ranks: {_format_microseconds(link.seconds[0])} us, "
            f"{speed:.2f} GB/s of sums" + (f", measured by an earlier run: {link.kept}" if link.kept else "")
        )
    small = describe_kinds([one.kind for one in plan.collectives])
    lines.append(f"{settings.format_bytes(plan.gradient_bytes)} of gradients in {len(plan.gradients)}; {small} a step")
    lines += _describe_input(plan)
    if plan.epoch_steps:
        lines.append(f"an epoch of the script alone: {plan.epoch_steps} steps")
    else:
        lines.append(f"epoch: its steps {describe_no_epoch(plan)}")
    return "\n".join(lines)


def _describe_input(plan: Plan) -> list[str]:
    """The cost of reading and decoding a batch, on the fewest and on the most ranks that were measured."""
    known = [(size.ranks, size.input) for size in plan.sizes if size.input is not None]
    if not known:
        return ["input: not measured, since steps take no batches of a tf.data pipeline before they begin"]
    costs = [
        f"rank 0 of {ranks} {one.seconds * 1e3:.3g} ms of a core and {settings.format_bytes(one.bytes)}"
        for ranks, one in dict([known[0], known[-1]]).items()
    ]
    return [f"to read and decode a batch takes {', and '.join(costs)}"]


def _format_megabytes(count: float) -> str:
    megabytes = count / 1e6
    return "<0.01" if 0 < megabytes < 0.005 else f"{megabytes:.{2 if megabytes < 100 else 0}f}"


def _describe_computation(plan: Plan, predictor: Predictor) -> str:
    """The dependence of a step's computation on the rows of a slice, as far as it was measured."""
    fixed, row = predictor.compute.split_seconds()
    text = f"{fixed * 1e3:.1f} ms a step"
    if not plan.rows:
        return f"{text} on any number of ranks, each of which computes the whole batch"
    if count_measured_rows(plan) < 2:
        return f"{text} of {plan.sizes[0].rows} rows; no other number of rows was measured"
    return f"{text} + {row * 1e3:.3g} ms a row"


def _format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-5 else f"{seconds * 1e6:.1f}"


def describe_kinds(kinds: Sequence[str]) -> str:
    """Counts the collectives of each kind, without the sums of gradients."""
    counts = Counter(kinds).items()
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts) or "no other collectives"


def _describe_sizes(plan: Plan) -> str:
    """The measured numbers of ranks, of concurrent copies, and of steps."""
    groups: dict[int, list[Size]] = {}
    for size in plan.sizes:
        groups.setdefault(size.copies, []).append(size)
    found = []
    for copies, sizes in sorted(groups.items()):
        counts = sorted({len(size.steps) for size in sizes})
        steps = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        ranks = ", ".join(str(size.ranks) for size in sizes)
        how = f"{copies} at once" if copies > 1 else "alone"
        found.append(f"rank 0 of {ranks} ({how}, {steps} step{'s' * (counts[-1] > 1)})")
    return "; ".join(found)


def format_closing(plan: Plan, predictor: Predictor, memory: float = 0.0) -> str:
    """Explains the signs, and lists the assumptions."""
    lines = []
    if memory and plan.rows:
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
    made = Table(box=None, pad_edge=False)
    made.add_column("strategy")
    for name in ("step ms", "range", "of allreduce", "optimizer MB/rank", "MiB/rank"):
        made.add_column(name, justify="right")
    made.add_column("result")
    for one in prices:
        step, sign = one.step, SIGNS[one.step.mark]
        made.add_row(
            one.strategy, f"{sign}{step.step * 1e3:.1f}", f"{sign}{step.low * 1e3:.1f} - {step.high * 1e3:.1f}",
            f"{sign}{step.step / prices[0].step.step:.2f}", f"{one.slots / 1e6:.1f}",
            f"{SIGNS[one.memory_mark]}{one.memory / 2**20:.0f}",
            "statistical" if one.is_statistical else "that of the script alone",
        )  # fmt: skip
    return made


def make_strategies_json(prices: Sequence[Price], refused: Sequence[Refusal], memory: float = 0.0) -> dict[str, Any]:
    """The strategies for one number of ranks as JSON; seconds, bytes."""
    best, reason = choose_strategy(prices, memory)
    return {
        "ranks": prices[0].step.ranks,
        "prices": [
            {
                "strategy": one.strategy, "statistical": one.is_statistical, "optimizer_bytes": one.slots,
                "memory": one.memory, "memory_mark": one.memory_mark, "mark": one.step.mark,
                **{name: getattr(one.step, name) for name in ("step", "low", "high", "compute", "exposed")},
            }
            for one in prices
        ],
        "cannot": {one.strategy: one.why for one in refused},
        "best": best,
        "reason": reason,
    }  # fmt: skip


def make_json(plan: Plan, predictions: Sequence[Prediction], choice: Choice) -> dict[str, Any]:
    """The predictions as JSON; seconds, bytes."""
    return {
        "script": list(plan.script),
        "predictions": [
            {**asdict(one), "mark": one.mark, "efficiency_mark": one.efficiency_mark} for one in predictions
        ],
        "best": choice.best.ranks if choice.best else None,
        "reason": choice.reason,
        "assumptions": list(plan.assumptions),
    }


_WIDTH, _HEIGHT, _MARGIN = 640, 360, 60


def draw_chart(predictions: Sequence[Prediction]) -> str:
    """Step time (with its range) and efficiency over ranks, as SVG; logarithmic axes for ranks and milliseconds."""
    most = max(one.high for one in predictions)
    least = min(one.low for one in predictions)
    last = max(log2(predictions[-1].ranks), 1.0)
    span = max(log2(most / least), 1.0)

    def format_point(ranks: int, share: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * log2(ranks) / last
        return f"{x:.1f},{_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share:.1f}"

    def scale_seconds(seconds: float) -> float:
        return log2(seconds / least) / span

    band = [format_point(one.ranks, scale_seconds(one.high)) for one in predictions]
    band += [format_point(one.ranks, scale_seconds(one.low)) for one in reversed(predictions)]
    steps = " ".join(format_point(one.ranks, scale_seconds(one.step)) for one in predictions)
    share = " ".join(format_point(one.ranks, min(one.efficiency, 1.0)) for one in predictions)
    names = [_draw_text(format_point(one.ranks, -0.07), str(one.ranks)) for one in predictions]
    names += [
        _draw_text(format_point(1, at / 4), f"{least * 2 ** (span * at / 4) * 1e3:.3g} ms", "end") for at in range(5)
    ]
    names += [_draw_text(format_point(predictions[-1].ranks, at / 4), f"{at * 25}%", "start") for at in range(5)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<polygon points="{" ".join(band)}" fill="#1f77b4" opacity="0.2"/>\n'
        f'<polyline points="{steps}" fill="none" stroke="#1f77b4" stroke-width="2"/>\n'
        f'<polyline points="{share}" fill="none" stroke="#d62728" stroke-width="2"/>\n' + "\n".join(names)
        + f'\n<text x="{_MARGIN}" y="24" fill="#1f77b4">step</text>'
        + f'<text x="{_WIDTH - _MARGIN - 60}" y="24" fill="#d62728">efficiency</text>\n</svg>\n'
    )  # fmt: skip


def _draw_text(place: str, text: str, anchor: str = "middle") -> str:
    x, y = place.split(",")
    shift = {"middle": 0, "end": -6, "start": 6}[anchor]
    return f'<text x="{float(x) + shift:.1f}" y="{y}" text-anchor="{anchor}">{text}</text>'
