"""`matex simulate --minibatch`: the best mini-batch of a convolutional network for the memory of a device.

HTC is the paper "Distributed Training Large-Scale Deep Architectures" (Zou et al., 2017). Its integer program
(`planner.papers.htc_minibatch`) chooses the algorithm of each convolution. A larger batch uses the device better, until
too little memory remains for the fast algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from matex_tf.planner.papers import htc, htc_minibatch

ROWS = "32,64,96,...,512"


def show_minibatch(layers: str, batch_sizes: Sequence[int], device_bytes: float) -> int:
    """Print the fastest algorithms for each batch size that fits in memory, and the best size.

    Args:
        layers: the network, in the notation of `htc.FORM`; "": AlexNet, the paper's example.
        device_bytes: the memory of the device, in bytes.

    Raises:
        click.UsageError: `layers` describes no network, or no batch size fits in memory.
    """
    try:
        network = htc.parse_architecture(layers) if layers else htc.ALEXNET
        batches = htc_minibatch.list_batches(network, batch_sizes, device_bytes)
    except ValueError as error:
        raise click.UsageError(f"--layers: {error}") from None
    if not batches:
        min_bytes = sum(vars(htc.memory_printed(network, min(batch_sizes))).values())
        raise click.UsageError(
            f"--minibatch: {min(batch_sizes)} rows take {min_bytes / 2**30:.3g} GiB without what an algorithm needs, "
            f"and the device has {device_bytes / 2**30:.3g} GiB: name fewer --rows or more --memory"
        )
    console = Console()
    console.print(f"{layers or htc.ALEXNET_LAYERS}, {device_bytes / 2**30:.3g} GiB", highlight=False)
    best_batch = max(batches, key=lambda batch: batch.rows_per_second)
    table = Table("rows", "algorithms", "rows/s, of the best")
    for batch in batches:
        letters = "".join("GF"[algorithm] for algorithm in batch.choice.algorithms)
        table.add_row(str(batch.rows), letters, f"{batch.rows_per_second / best_batch.rows_per_second:.3f}")
    console.print(table)
    hint = ""
    if left_out_count := len(batch_sizes) - len(batches):
        hint = f" {left_out_count} larger batch{'es do' if left_out_count > 1 else ' does'} not fit."
    elif best_batch is batches[-1]:
        hint = " It is the largest of those asked for: name larger --rows."
    console.print(
        f"suggested: {best_batch.rows} rows.{hint}\n"
        "G: matrix multiplication (GEMM), F: FFT, one letter for each convolution, chosen by equation 6 of HTC. Memory "
        "is that of its equations 2 to 5, as printed. Times are counts of operations, and were not measured. Another "
        "batch changes the training.",
        highlight=False,
    )
    return 0
