"""Pictures of concepts: ranks on hosts, collectives in a sequence, tickets, a run and its state."""

from __future__ import annotations

from canvas import Canvas

RANKS = ("blue", "orange", "green", "violet")


def hosts() -> Canvas:
    """Two hosts with two ranks each, which run the same script."""
    canvas = Canvas(760, 236, "Four ranks on two hosts: each runs the complete script; rank 0 prints and saves")
    canvas.text(380, 30, "mpirun -n 4 python -m matex_tf train.py", 14, at="middle", bold=True)
    for host, left in enumerate((28, 388)):
        canvas.rectangle(left, 50, 344, 116, "panel", "edge")
        canvas.text(left + 14, 72, f"host {host}", 13, "faint", bold=True)
        for inner in range(2):
            rank, x = host * 2 + inner, left + 18 + inner * 158
            canvas.rectangle(x, 84, 148, 68, "page", RANKS[rank])
            canvas.text(x + 74, 106, f"rank {rank}", 14, RANKS[rank], "middle", bold=True)
            canvas.text(x + 74, 126, "runs train.py", 12, at="middle")
            words = "prints, saves" if rank == 0 else "silent"
            canvas.text(x + 74, 143, words, 12, "ink" if rank == 0 else "faint", "middle", bold=rank == 0)
    canvas.line([(200, 176), (200, 190), (560, 190), (560, 176)], "faint", 1.6)
    canvas.text(380, 216, "shared memory within a host, MPI between hosts", 12, "faint", "middle")
    return canvas


def sequence() -> Canvas:
    """Two ranks at the same collective exchange data; at different ones both raise the same error."""
    canvas = Canvas(760, 226, "Ranks compare number, kind and layout of a collective before data move")
    columns = (("5", "all-reduce", True), ("6", "all-gather", True), ("7", "all-reduce", True), ("8", "?", False))
    for number, (label, _, _) in enumerate(columns):
        canvas.text(190 + number * 150, 34, f"number {label}", 13, "faint", "middle", bold=True)
    for rank in range(2):
        y = 54 + rank * 74
        canvas.text(28, y + 28, f"rank {rank}", 14, RANKS[rank], bold=True)
        for number, (_, kind, agrees) in enumerate(columns):
            x = 130 + number * 150
            words = kind if agrees else ("all-reduce", "broadcast")[rank]
            canvas.rectangle(x, y, 120, 44, "panel", RANKS[rank] if agrees else "red")
            canvas.text(x + 60, y + 27, words, 13, at="middle")
            if number:
                canvas.arrow((x - 28, y + 22), (x - 4, y + 22))
    for number, (_, _, agrees) in enumerate(columns):
        x = 190 + number * 150
        canvas.text(x, 118, "same" if agrees else "different", 12, "green" if agrees else "red", "middle", bold=True)
    canvas.text(340, 204, "data move", 13, "green", "middle", bold=True)
    canvas.text(640, 204, "the same error on every rank", 13, "red", "middle", bold=True)
    return canvas


def tickets() -> Canvas:
    """Every rank orders all tickets; each works on those of its slice only."""
    canvas = Canvas(760, 252, "Tickets: every rank orders all of them, and reads and decodes only its slice")
    order, cell = (5, 2, 7, 0, 3, 6, 1, 4), 40
    heads = ((104, "all tickets, on every rank"), (412, "shuffled and batched"), (650, "read and decoded"))
    for x, words in heads:
        canvas.text(x, 30, words, 13, at="middle", bold=True)
    for rank in range(2):
        top = 62 + rank * 92
        canvas.text(24, top - 6, f"rank {rank}", 13, RANKS[rank], bold=True)
        for number in range(8):
            x, y = 24 + number % 8 * 20, top
            canvas.rectangle(x, y, 17, 34, "panel", "edge", 2)
            canvas.text(x + 8.5, y + 22, str(number), 12, "faint", "middle")
        canvas.arrow((194, top + 17), (236, top + 17))
        for number, ticket in enumerate(order):
            x = 244 + number * cell + number // 4 * 10
            mine = number % 4 // 2 == rank
            canvas.rectangle(x, top, cell - 3, 34, RANKS[rank] if mine else "panel", "" if mine else "edge", 2)
            canvas.text(x + 18, top + 22, str(ticket), 13, "page" if mine else "faint", "middle", bold=mine)
        canvas.arrow((574, top + 17), (606, top + 17))
        for place, number in enumerate(number for number in range(8) if number % 4 // 2 == rank):
            x = 612 + place * 34
            canvas.rectangle(x, top - 4, 30, 42, RANKS[rank], round_by=2)
            canvas.text(x + 15, top + 22, str(order[number]), 13, "page", "middle", bold=True)
    canvas.text(244, 218, "batch 1", 12, "faint")
    canvas.text(414, 218, "batch 2", 12, "faint")
    words = "Tickets cost nothing; N ranks read 1/N of the data each, in the script's order."
    canvas.text(380, 242, words, 12, "faint", "middle")
    return canvas


def run() -> Canvas:
    """A run keeps its state, loses a rank, and restarts from the last state."""
    canvas = Canvas(760, 214, "A run with --restarts: state every minute, a lost rank, a restart from the last state")
    canvas.arrow((90, 174), (736, 174))
    canvas.text(736, 194, "time", 12, "faint", "end")
    for rank in range(3):
        y = 34 + rank * 42
        canvas.text(28, y + 19, f"rank {rank}", 13, RANKS[rank], bold=True)
        end = 396 if rank < 2 else 372
        canvas.rectangle(92, y, end - 92, 28, RANKS[rank], round_by=2)
        canvas.text(104, y + 19, "trains", 12, "page")
        canvas.rectangle(490, y, 220, 28, RANKS[rank], round_by=2)
        canvas.text(502, y + 19, "continues at epoch 4, step 120", 12, "page")
    canvas.text(384, 137, "lost", 13, "red", bold=True)
    for x, words in ((196, "state"), (300, "state")):
        canvas.line([(x, 28), (x, 168)], "ink", 1.6, dashed=True)
        canvas.text(x, 192, words, 12, at="middle", bold=True)
    canvas.line([(300, 198), (300, 206), (488, 206), (488, 180)], "violet", 1.6)
    canvas.arrow((488, 186), (488, 170), "violet")
    canvas.text(394, 200, "restart", 12, "violet", "middle", bold=True)
    return canvas


def strategies() -> Canvas:
    """Which rank updates which third of the weights, for five strategies."""
    canvas = Canvas(760, 262, "Who updates which weights: three ranks, the weights in three pieces, five strategies")
    canvas.text(28, 32, "updates", 12, "faint")
    columns = ("allreduce", "sharded", "servers:1", "async", "local:H")
    notes = ("every rank, all", "each its piece", "one owner, all", "each its batch", "each its own")
    for number, (name, note) in enumerate(zip(columns, notes)):
        left = 96 + number * 132
        canvas.text(left + 54, 32, name, 14, at="middle", bold=True)
        canvas.text(left + 54, 222, note, 12, "faint", "middle")
        if name == "async":
            canvas.rectangle(left - 6, 44, 120, 156, "panel", "violet")
        for rank in range(3):
            y = 52 + rank * 50
            if number == 0:
                canvas.text(28, y + 26, f"rank {rank}", 13, RANKS[rank], bold=True)
            for piece in range(3):
                mine = {"sharded": piece == rank, "servers:1": rank == 0}.get(name, True)
                x = left + piece * 37
                colour = "violet" if name == "async" else RANKS[rank]
                canvas.rectangle(x, y, 34, 38, colour if mine else "page", "" if mine else "edge", 3)
        words, colour = {"async": ("shared memory", "violet"), "local:H": ("mean every H steps", "faint")}.get(
            name, ("exact", "green")
        )
        canvas.text(left + 54, 246, words, 12, colour, "middle")
    return canvas


def job() -> Canvas:
    """A job that reaches its time limit keeps its state, is queued again, and completes."""
    canvas = Canvas(
        760, 196, "A job of matex submit: it keeps its state before the time limit, and continues in the queue"
    )
    boxes = (
        (28, "queued", "grey", ""),
        (168, "runs", "blue", "epochs 1 to 61"),
        (348, "state kept", "violet", "exit code 75"),
        (488, "queued again", "grey", ""),
        (628, "runs", "blue", "epochs 61 to 90"),
    )
    for number, (x, words, colour, below) in enumerate(boxes):
        width = 140 if words == "runs" and number == 1 else 104
        canvas.rectangle(x, 62, width, 50, "panel", colour)
        canvas.text(x + width / 2, 92, words, 13, at="middle", bold=True)
        canvas.text(x + width / 2, 132, below, 12, "faint", "middle")
        if number < len(boxes) - 1:
            canvas.arrow((x + width + 4, 87), (boxes[number + 1][0] - 4, 87))
    canvas.text(28, 34, "matex submit --slurm --nodes 4 --time 2:00:00 train.py --epochs 90", 13, bold=True)
    canvas.line([(328, 52), (328, 120)], "red", 1.6, dashed=True)
    canvas.text(328, 152, "2 minutes before the limit", 12, "red", "middle")
    canvas.text(380, 182, "One command; the result equals that of a job without a limit.", 12, "faint", "middle")
    return canvas
