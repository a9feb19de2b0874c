"""Compares the numbers of GaDei with calculated numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from papers import gadei
from papers.figure import CALCULATED, PREDICTED, UNEXPLAINED, Figure, format_list

_FINE = 0.005
"""The relative error up to which a number counts as reproduced by the formula."""
_NLC, _IMAGES = ("Joule", "Watt", "Age", "Yelp"), ("CIFAR", "ImageNet")


def compare_gadei() -> Iterator[Figure]:
    yield from _compare_intervals()
    yield from _compare_required()
    yield from _compare_hours()
    yield from _compare_used()
    yield from _compare_smallest()


def _compare_intervals() -> Iterator[Figure]:
    rows = gadei.INTERVALS
    calculated = [
        100 * gadei.utilization_by_interval(interval.utilization[0] / 100, gadei.EIGHTH) for interval in rows.values()
    ]
    published = [interval.utilization[1] for interval in rows.values()]
    yield Figure(
        "2.2, Table 1", f"GPU utilization in percent, {', '.join(rows)}: communicating after each batch",
        format_list((interval.utilization[0] for interval in rows.values()), ".1f"), "", UNEXPLAINED,
        "neither times of batches nor of messages are given",
    )  # fmt: skip
    yield Figure(
        "2.2, Table 1", "the same, after every 8th batch", format_list(published, ".1f"),
        format_list(calculated, ".1f"), PREDICTED,
        "from the line above: " + format_list((o / t - 1 for o, t in zip(calculated, published)), "+.1%"),
    )  # fmt: skip
    yield Figure(
        "2.2, Table 1", "accuracy in percent, after each batch; after every 8th",
        "; ".join(format_list((interval.accuracy[column] for interval in rows.values()), ".1f") for column in (0, 1)),
        "", UNEXPLAINED, "the models know no accuracy",
    )  # fmt: skip


def _compare_required() -> Iterator[Figure]:
    errors = {name: gadei.worst_required(workload) for name, workload in gadei.WORKLOADS.items()}
    net_errors = {name: gadei.worst_required(load, gadei.ROUNDING) for name, load in gadei.WORKLOADS.items()}
    fine = {name: error for name, error in net_errors.items() if error <= _FINE}
    rounded = f"its numbers have two decimals: less rounding, {gadei.ROUNDING} GB/s of each difference are left out"
    yield Figure(
        "3, Table 4", f"required bandwidth, {', '.join(fine)}", f"{_count_numbers(fine)} numbers",
        f"within {max(errors[name] for name in fine):.1%}; less rounding {max(fine.values()):.1%}", CALCULATED,
        f"2 sizes of the model over the time of a batch; {rounded}",
    )  # fmt: skip
    others = [name for name in net_errors if name not in fine]
    deviating = [f"{name} {errors[name]:.1%}; less rounding {net_errors[name]:.1%}" for name in others]
    yield Figure(
        "3, Table 4", "the same, the others", f"{_count_numbers(net_errors) - _count_numbers(fine)} numbers",
        f"off by up to: {', '.join(deviating)}", UNEXPLAINED, "more than its number of rows is rounded by",
    )  # fmt: skip


def _compare_hours() -> Iterator[Figure]:
    calculated = {
        name: gadei.hours(name) for name, workload in gadei.WORKLOADS.items() if workload.batch in gadei.LEARNED_BATCH
    }
    max_error = max(abs(gadei.HOURS[name] / ours - 1) for name, ours in calculated.items())
    without_batch = ", ".join(name for name in gadei.HOURS if name not in calculated)
    yield Figure(
        "6.2, Table 6", f"hours of one learner, {', '.join(gadei.HOURS)}", format_list(gadei.HOURS.values(), "g"),
        f"{format_list(calculated.values(), '.2f')}; none for {without_batch}", PREDICTED,
        f"from Table 4's epochs at the batches of Tables 2 and 3; within {max_error:.1%}. Table 4 has no batch of "
        f"{gadei.WORKLOADS[without_batch].batch} rows",
    )  # fmt: skip


def _compare_used() -> Iterator[Figure]:
    for name, workload in gadei.WORKLOADS.items():
        alone = gadei.needed_alone(name)
        speedups = [gadei.speedup_of(used, alone) for used in workload.used]
        sizes = max(2 * gain / learners for gain, learners in zip(speedups, (2, 3, 4)))
        source = "Table 4" if workload.batch in gadei.LEARNED_BATCH else "Table 6"
        yield Figure(
            "6.2, Table 7", f"{name}: GB/s used by 2, 3, 4 learners", format_list(workload.used, "g"),
            f"speedups of {format_list(speedups, '.1f')}", UNEXPLAINED,
            f"one learner needs {alone:.3g} GB/s, by {source}, at 2 sizes of the model a batch; with at most linear "
            f"gains a batch moves {sizes:.1f} or more",
        )  # fmt: skip
    max_used = max(max(workload.used) for workload in gadei.WORKLOADS.values())
    yield Figure(
        "6.2, Table 7", "most GB/s used", f"{max_used:g}", "", UNEXPLAINED,
        "the memory's peak is 40 GB/s in section 5.3",
    )  # fmt: skip
    yield Figure(
        "6.2, Fig. 8", "speedup with up to 4 learners: NLC workloads; CIFAR and ImageNet",
        "1.5 to 3 on average; near linear, says the text",
        f"up to {_find_most_gain(_NLC):.1f}; up to {_find_most_gain(_IMAGES):.1f}", UNEXPLAINED,
        "by Table 7, as above: more than linear",
    )  # fmt: skip


def _find_most_gain(names: Iterable[str]) -> float:
    """The largest speedup in Table 7 with 4 learners."""
    return max(gadei.speedup_of(gadei.WORKLOADS[name].used[-1], gadei.needed_alone(name)) for name in names)


def _compare_smallest() -> Iterator[Figure]:
    for system, name in enumerate(gadei.SYSTEMS):
        published = {workload: rows[system] for workload, rows in gadei.SMALLEST.items()}
        ranges = [gadei.bandwidth_bracket(gadei.WORKLOADS[workload], rows) for workload, rows in published.items()]
        lower, upper = max(low for low, _ in ranges), min(high for _, high in ranges)
        fits = f"one of {lower:g} to {upper:g} fits all" if lower < upper else "no single one fits all"
        yield Figure(
            "6.3, Table 8", f"smallest batch with a gain, {name}: {', '.join(published)}",
            format_list(published.values(), "d"),
            f"{name} then has GB/s of " + ", ".join(map(_format_bracket, ranges)),
            PREDICTED if lower < upper else UNEXPLAINED, f"by what Table 4 requires at that batch and the next; {fits}",
        )  # fmt: skip


def _format_bracket(bracket: tuple[float, float]) -> str:
    low, high = bracket
    return f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"


def _count_numbers(workloads: Iterable[str]) -> int:
    """How many numbers Table 4 has for these workloads."""
    return sum(not math.isnan(required) for name in workloads for required in gadei.WORKLOADS[name].required)
