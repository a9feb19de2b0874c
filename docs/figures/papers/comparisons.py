"""All reproduced numbers of the five papers, published and calculated, with the numbers that cannot be explained.

Each function yields the lines of one paper's table, in the order of docs/papers.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from papers import gadei_figures, htc_gpus, htc_memory, ibatch_speedups, matex, networks
from papers.figure import CALCULATED, FITTED, PREDICTED, UNEXPLAINED, Figure, format_list

from matex_tf.planner import queueing
from matex_tf.planner.papers import htc, htc_minibatch, xai

_XAI_ADAPTER = 20e9 / 8
"""Bytes a second of the cluster "HPC" (Table 2)."""
_SHARES = [percent / 100 for percent in range(1, 100)]
"""Values of T_t / T, the fraction of a step in which a worker transfers."""


def compare_xai() -> Iterator[Figure]:
    edge = max(abs(xai.expected_bandwidth_closed(n, 1 / (n - 1)) - 2) for n in range(3, 65))
    yield Figure(
        "4.2.2, eq. 5", "E_BW / BW_w at the edge of the domain, T_t/T = 1/(n-1)", "",
        f"2 for n = 3 to 64 (within {max(edge, 1e-12):.0e})", CALCULATED,
        "so within its domain eq. 6 never asks for more than 2 BW_w / BW_ps servers",
    )  # fmt: skip
    cases = [(n, share) for n in range(2, 7) for share in _SHARES[:20] if not xai.explain_outside(n, share)]
    server_counts = {xai.servers(*case).value for case in cases}
    yield Figure(
        "7.2, Fig. 8", "servers for 2 to 6 workers, ResNet-50, MXNet", "2", _format_range(server_counts), PREDICTED,
        "for each T_t/T up to 0.2 that is in the domain, equal adapters",
    )  # fmt: skip
    low, high = _find_share_range(4, 5)
    yield Figure(
        "7.2, Fig. 7", "servers for 4 workers, ResNet-50, TensorFlow on AWS", "5",
        f"5 for T_t/T {low:.3f} to {high:.3f}; exact model {_format_least_servers(4, low, high)} for 95%", UNEXPLAINED,
        "outside the domain (below 0.333); the exact model needs fewer",
    )  # fmt: skip
    low, high = _find_share_range(5, 5)
    gains = [
        queueing.compute_throughput(5, 5, 1 - q, q) / queueing.compute_throughput(5, 1, 1 - q, q) for q in (low, high)
    ]
    yield Figure(
        "7.4, Fig. 10", "AlexNet, TensorFlow on AWS, 5 workers: servers; gain over 1 server", "5; 2x",
        f"5 for T_t/T {low:.3f} to {high:.3f}; {gains[0]:.2f}x to {gains[1]:.2f}x", FITTED,
        f"T_t/T fitted to the servers, the gain predicted by the exact model; outside the domain (below 0.25), and "
        f"{_format_least_servers(5, low, high)} servers reach 95%",
    )  # fmt: skip
    by_layer = divide_layers(list(networks.ALEXNET_LAYERS.values()), 4)
    yield Figure(
        "7.3, Fig. 9", "AlexNet's layers on 4 servers in turn", "servers 2 and 3 much fuller than 1 and 4",
        " / ".join(f"{share:.0%}" for share in by_layer), PREDICTED, "from layer sizes alone; by size 25% each",
    )  # fmt: skip
    updates = _XAI_ADAPTER / (4 * networks.RESNET_50.parameters)
    yield Figure(
        "7.1.1, Fig. 3", "images/s at which ResNet-50, MXNet, 1 server stops growing", "around 250",
        f"{updates:.1f} updates/s fit 20 Gbit/s: 250 in batches of {250 / updates:.0f}", UNEXPLAINED,
        "the batch is not given",
    )  # fmt: skip
    yield Figure(
        "7.1.1", "TensorFlow below MXNet, synchronous, many servers", "up to 30%", "", UNEXPLAINED,
        "the models know no frameworks",
    )  # fmt: skip
    max_gain, share_at_max = max((_compute_async_gain(8, 4, q), q) for q in _SHARES)
    yield Figure(
        "7.1.3, Fig. 4", "asynchronous over synchronous, AlexNet and VGG16, 8 workers, 4 servers", "up to 80%",
        f"up to {max_gain - 1:.0%}, at T_t/T {share_at_max:.2f}", UNEXPLAINED,
        "synchronous workers transfer all at once, none is late; asynchronous by the exact model",
    )  # fmt: skip
    shares = [q for q in _SHARES if _compute_async_gain(8, 1, q) >= 1.38]
    yield Figure(
        "7.1.4, Fig. 5", "the same, AlexNet, 8 workers, 1 server, on average over batches", "38%",
        f"38% at T_t/T {shares[0]:.2f} and {shares[-1]:.2f}", FITTED, "more between these; T_t/T is not given",
    )  # fmt: skip
    yield Figure(
        "7.1", "the other throughputs of Fig. 3 to 6", "only directions in the text", "", UNEXPLAINED,
        "batch sizes are not given, so that no absolute time can be predicted",
    )  # fmt: skip
    yield Figure(
        "abstract", "XAI over default setups", "2x to 5x", f"{gains[0]:.2f}x to {gains[1]:.2f}x, of Fig. 10",
        UNEXPLAINED, "the text has no case of more than 2x",
    )  # fmt: skip


def compare_htc() -> Iterator[Figure]:
    published = (11.6, 1.6, 2.3, 2.7, 2.3)
    # (width of inputs, width of outputs, channels, filters) of each convolution
    layers = ((224, 55, 3, 96), (27, 27, 96, 256), (13, 13, 256, 384), (13, 13, 384, 384), (13, 13, 384, 256))
    calculated = [
        htc_minibatch.fft_bytes(128, width, depth, filters) / htc_minibatch.gemm_bytes(128, width, out, depth, filters)
        for width, out, depth, filters in layers
    ]
    max_error = max(abs(ours / theirs - 1) for ours, theirs in zip(calculated, published))
    yield Figure(
        "3.1.2, Table 2", "memory of FFT over GEMM, AlexNet's convolutions, 128 rows", format_list(published, ".1f"),
        format_list(calculated, ".2f"), FITTED,
        f"the paper has no formula; the form was searched for; within {max_error:.1%}",
    )  # fmt: skip
    as_printed, corrected = htc.memory_printed(htc.ALEXNET, 128), htc_memory.memory(htc.ALEXNET, 128)
    yield Figure(
        "3.1.3, eq. 2 to 4", "MiB of features, parameters, classifier; AlexNet, 128 rows", "",
        f"{_format_mib(as_printed)}; mended {_format_mib(corrected)}", CALCULATED, "; ".join(htc_memory.MISTAKES),
    )  # fmt: skip
    peaks = [_find_peak_batch(gibibytes) for gibibytes in (1.5, 2, 3)]
    yield Figure(
        "3.1.3, eq. 6, Fig. 2", "throughput rises with the batch and falls past a threshold", "no numbers",
        "falls past " + ", ".join(f"{rows} rows in {size} GiB" for rows, size in zip(peaks, (1.5, 2, 3))), PREDICTED,
        "the shape; times are counts of operations",
    )  # fmt: skip
    yield Figure(
        "3.2, lemma 3.1", "most overhead for 80% on 4 GPUs", "9%", f"{htc_gpus.overhead(4, 0.8):.2%}", CALCULATED,
    )  # fmt: skip
    yield Figure(
        "3.2, lemma 3.1", "GPUs for 3x at 10% overhead", "4", f"{htc_gpus.gpus_for(3, 0.1)} "
        f"({4 * htc_gpus.efficiency(4, 0.1):.2f}x; 3 give {3 * htc_gpus.efficiency(3, 0.1):.2f}x)", CALCULATED,
    )  # fmt: skip
    speedups = [gpus * htc_gpus.efficiency(gpus, 0.1) for gpus in (2, 4, 8)]
    yield Figure(
        "3.2, Fig. 4", "estimated and actual speedup of four networks", "match, says the text; no numbers",
        f"by the lemma {format_list(speedups, '.2f')} on 2, 4, 8 GPUs, at 10% overhead", UNEXPLAINED,
        "neither networks nor overheads are in the text",
    )  # fmt: skip
    update = 4 * networks.ALEXNET.parameters / 1e6
    yield Figure(
        "3.3", "MB of an update of AlexNet", "about 180", f"{update:.1f}", UNEXPLAINED, "62.4 M numbers of 4 bytes"
    )  # fmt: skip
    cases = [(8, 0.2), (8, 0.5), (16, 0.3), (32, 0.1), (32, 0.3)]
    pairs = (
        f"{htc.servers(n, q / 2, 1.0, 1 - q).value:.0f} / {queueing.find_least_servers(n, 1 - q, q)}" for n, q in cases
    )
    yield Figure(
        "3.3, lemma 3.2", "servers, lemma / exact for 95%, at (n, T_t/T) of " + ", ".join(map(str, cases)), "",
        ", ".join(pairs), CALCULATED, "too few at few workers, too many where transfers dominate",
    )  # fmt: skip


_NETS = ("GoogLeNet", "Inception-V3", "VGG19", "VGG19-22K")
_SPARSE = ("Inception-V3", "VGG19")
_DEFAULT_30, _LAYERWISE_30, _IBATCH_30 = (26, 25, 23, 22), (25, 24, 22, 21), (29, 28, 26, 25)


def compare_ibatch() -> Iterator[Figure]:
    calculated = [ibatch_speedups.speedup_with_pulls_hidden(30, default) for default in _DEFAULT_30]
    errors = [ours / theirs - 1 for ours, theirs in zip(calculated, _IBATCH_30)]
    yield Figure(
        "Scalability, Fig. 5", "speedup of iBatch on 30 nodes: " + ", ".join(_NETS), format_list(_IBATCH_30, "d"),
        format_list(calculated, ".1f"), PREDICTED, "from the default's speedup alone: " + format_list(errors, "+.1%"),
    )  # fmt: skip
    starts = [ibatch_speedups.start_ups(30, *pair) for pair in zip(_DEFAULT_30, _LAYERWISE_30)]
    yield Figure(
        "Scalability, Fig. 5", "speedup of layer by layer on 30 nodes", format_list(_LAYERWISE_30, "d"),
        "the same, with starts of " + format_list(starts, ".2f") + " of a node's step", FITTED,
        f"the text calls it better than the default's {format_list(_DEFAULT_30, 'd')}: its numbers say worse",
    )  # fmt: skip
    ceilings = [ibatch_speedups.ceiling(72, 26, share) for share in (1 / 3, 1.0)]
    yield Figure(
        "Scalability, Fig. 5", "speedup of iBatch on 72 nodes, VGG19-22K", "45",
        f"at most {ceilings[0]:.1f} (forward pass a third of a step), {ceilings[1]:.1f} (all of it)", UNEXPLAINED,
        f"45 needs a forward pass of {ibatch_speedups.forward_share(72, 26, 45).value:.2f} steps: pulls cannot hide in "
        "more than there is; congestion that falls when pulls are spread may be the reason",
    )  # fmt: skip
    yield Figure(
        "Scalability, Fig. 5", "speedup of layer by layer on 72 nodes, VGG19-22K", "32",
        f"needs a forward pass of {ibatch_speedups.forward_share(72, 26, 32).value:.2f} of a step, or more",
        UNEXPLAINED,
    )  # fmt: skip
    yield from _compare_sparse_gradients()
    yield Figure(
        "abstract", "iBatch over default, over layer by layer", "73%, 41%", f"{45 / 26 - 1:.0%}, {45 / 32 - 1:.0%}",
        CALCULATED, "arithmetic on 45, 26 and 32 only",
    )  # fmt: skip


def _compare_sparse_gradients() -> Iterator[Figure]:
    """Pulls on 72 nodes take their time on 30 nodes times 72/30, or times the growth of VGG19-22K's communication."""
    vgg_factor = ibatch_speedups.communication_share(72, 26) / ibatch_speedups.communication_share(30, 22)
    speedups = []
    for factor in (72 / 30, vgg_factor):
        pulls = [
            factor * ibatch_speedups.communication_share(30, _DEFAULT_30[_NETS.index(name)]) / 2 for name in _SPARSE
        ]
        speedups.append([ibatch_speedups.speedup_with_sparse_gradients(72, pull, 1 / 3) for pull in pulls])
    yield Figure(
        "Scalability, Fig. 6", "speedup of iBatch with sparse gradients on 72 nodes: " + ", ".join(_SPARSE),
        "almost linear, says the text; no numbers",
        f"{format_list(speedups[0], '.1f')} if pulls take 72/30 of 30 nodes' time; {format_list(speedups[1], '.1f')} "
        f"if {vgg_factor:.2f} times, as VGG19-22K's communication does", UNEXPLAINED,
        "from the default on 30 nodes, with a forward pass of a third of a step and gradients that cost nothing; the "
        "second is not almost linear",
    )  # fmt: skip


def compare_matex() -> Iterator[Figure]:
    names = list(matex.SPEEDUP_16)
    for label, nets in (("AlexNet without groups", matex.UNGROUPED), ("AlexNet with groups", matex.GROUPED)):
        fit = matex.fit_ratio(nets)
        yield Figure(
            "IV-B, Fig. 11a", f"speedup on 16 nodes: {', '.join(names)}; {label}",
            format_list(matex.SPEEDUP_16.values(), "g"), format_list(fit.speedups.values(), ".1f"), FITTED,
            f"one constant, {fit.ratio:.1f} operations a byte; within {fit.largest_error:.1%}",
        )  # fmt: skip
    grouped = matex.GROUPED
    errors = matex.leave_one_out(grouped)
    yield Figure(
        "IV-B, Fig. 11a", "the same, each from the three others", "", format_list(errors.values(), "+.1%"), PREDICTED,
        "AlexNet with groups",
    )  # fmt: skip
    alexnet_fit = matex.fit_ratio(grouped, ["AlexNet"])
    yield Figure(
        "IV-B, Fig. 11a", "the same, three from AlexNet", "",
        format_list([alexnet_fit.error(name) for name in names[1:]], "+.1%"), PREDICTED,
    )  # fmt: skip
    overheads = [htc_gpus.overhead(16, speedup / 16) for speedup in matex.SPEEDUP_16.values()]
    yield Figure(
        "IV-B", "ResNet-50 scales best, with less work for each byte than GoogLeNet and InceptionV3", "15.3",
        f"{matex.fit_ratio(grouped).speedups['ResNet-50']:.1f}", UNEXPLAINED,
        "no model of work and bytes gives that; overhead by lemma 3.1: " + format_list(overheads, ".4f"),
    )  # fmt: skip
    yield Figure(
        "IV-B", "overhead of the user operations", "12%", "", UNEXPLAINED,
        "neither network nor batch is named, and the models have no such part",
    )  # fmt: skip
    ratio = matex.ratio_for(networks.ALEXNET_GROUPED, 4, 1.95)
    other_speedups = [matex.speedup(net, 4, ratio) for net in grouped[1:]]
    yield Figure(
        "IV-B, Fig. 11b", "speedup on 4 GPUs: AlexNet; the others", "less than 2; numbers lost",
        f"1.95; {format_list(other_speedups, '.2f')}", FITTED, "nothing to compare the others with",
    )  # fmt: skip


PAPERS = {
    "XAI": compare_xai,
    "HTC": compare_htc,
    "iBatch": compare_ibatch,
    "MaTEx-TensorFlow": compare_matex,
    "GaDei": gadei_figures.compare_gadei,
}


def divide_layers(parameters: Sequence[int], servers: int) -> list[float]:
    """The fraction of all parameters on each server, if layer i is on server i % servers (7.3, Fig. 9 above).

    If the parameters are divided by size, each server has 1 / servers (Fig. 9 below).
    """
    return [sum(parameters[server::servers]) / sum(parameters) for server in range(servers)]


def _compute_async_gain(workers: int, servers: int, share: float) -> float:
    """Asynchronous steps a second (exact model) over those with all transfers at once (4.2.2); `share` is T_t / T."""
    synchronous = workers / (1 - share + share * max(1.0, workers / servers))
    return queueing.compute_throughput(workers, servers, 1 - share, share) / synchronous


def _find_share_range(workers: int, servers: int) -> tuple[float, float]:
    """The smallest and the largest T_t/T, in steps of 0.001, at which equation 6 requires `servers`."""
    shares = [q / 1000 for q in range(1, 1000) if xai.servers(workers, q / 1000).value == servers]
    return shares[0], shares[-1]


def _format_least_servers(workers: int, low: float, high: float) -> str:
    return _format_range({queueing.find_least_servers(workers, 1 - q, q) for q in (low, high)})


def _format_range(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def _find_peak_batch(gibibytes: float) -> int:
    """The batch size, in steps of 32 rows, with the most rows a second."""
    batches = htc_minibatch.list_batches(htc.ALEXNET, range(32, 512, 32), gibibytes * 2**30)
    return max(batches, key=lambda batch: batch.rows_per_second).rows


def _format_mib(memory: htc.Memory) -> str:
    return ", ".join(f"{size / 2**20:.0f}" for size in (memory.features, memory.parameters, memory.classifier))
