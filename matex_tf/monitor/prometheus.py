"""The last samples in Prometheus' text format, for the textfile collector of node exporter. Pure functions."""

from __future__ import annotations

from matex_tf.monitor.recording import Run, read_recent

# Of each metric: its key in a sample, its name, its type, and its help text.
_METRICS = (
    ("cpu", "matex_rank_cpu_seconds_total", "counter", "Seconds of all threads of the rank."),
    ("mem", "matex_rank_resident_bytes", "gauge", "Resident memory of the rank."),
    ("up", "matex_rank_updates_total", "counter", "Updates that the rank has made."),
    ("rows", "matex_rank_rows_total", "counter", "Rows of the global batches of those updates."),
    ("st", "matex_rank_steps_total", "counter", "Training steps that were timed."),
    ("com", "matex_rank_compute_seconds_total", "counter", "Seconds of those steps between collectives."),
    ("wait", "matex_rank_waiting_seconds_total", "counter", "Seconds of those steps waiting for other ranks."),
    ("sum", "matex_rank_sums_seconds_total", "counter", "Seconds of those steps in collectives, without the waiting."),
    ("in", "matex_rank_input_seconds_total", "counter", "Seconds of the rank waiting for its input."),
    ("read", "matex_rank_read_bytes_total", "counter", "Bytes that the rank has read by system calls."),
    ("gpu", "matex_rank_gpu_percent", "gauge", "How busy the rank's GPUs are."),
    ("vram", "matex_rank_gpu_bytes", "gauge", "Memory that is used on the rank's GPUs."),
    ("rx", "matex_host_received_bytes_total", "counter", "Bytes that the rank's host has received."),
    ("tx", "matex_host_sent_bytes_total", "counter", "Bytes that the rank's host has sent."),
    ("t", "matex_rank_sampled_seconds", "gauge", "When the rank was sampled last, seconds since 1970."),
)


def format_metrics(run: Run) -> str:
    """The last sample of each rank in the last start of a run, as text. The labels of each value are the run's folder,
    the number of the start, the rank and its host.
    """
    start = run.starts[-1]
    recent = read_recent(start, 0)  # 0 seconds: only the last two samples of each rank
    labels = {
        rank: f'run="{_escape_label(run.folder)}",start="{start.number}",rank="{rank}",'
        f'host="{_escape_label(start.hosts[rank])}"'
        for rank in recent
    }
    lines = []
    for member, name, kind, meaning in _METRICS:
        values = {rank: series.samples[-1][member] for rank, series in recent.items() if member in series.samples[-1]}
        if values:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels[rank]}}} {value}" for rank, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


def _escape_label(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
