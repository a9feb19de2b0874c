"""Pictures of how it works: slices of a batch, the path of a gradient, placements, and whose rows are whose."""

from __future__ import annotations

from pathlib import Path

from canvas import Canvas

from matex_tf.readers.rows.layout import Deal
from matex_tf.sharding.slice_bounds import deal_block

ROOT = Path(__file__).resolve().parent.parent.parent
RANKS = ("blue", "orange", "green")


def slices() -> Canvas:
    """One step: the batch is cut, each rank computes, the gradients are summed, every rank makes the same update."""
    batch, ranks = 64, len(RANKS)
    canvas = Canvas(760, 330, f"A batch of {batch} rows on {ranks} ranks: slices, gradients, all-reduce, update")
    heads = ((62, "global batch"), (198, "slice"), (350, "forward, backward"), (512, "all-reduce"), (660, "update"))
    for x, words in heads:
        canvas.text(x, 34, words, 14, at="middle", bold=True)
    scale, top = 3.6, 58
    canvas.rectangle(500, top, 24, batch * scale, "violet")
    for rank, colour in enumerate(RANKS):
        start, stop = deal_block(batch, rank, ranks)
        y, height = top + start * scale, (stop - start) * scale
        middle = y + height / 2
        canvas.rectangle(30, y, 64, height - 2, colour, round_by=2)
        canvas.arrow((98, middle), (140, middle))
        canvas.rectangle(144, middle - 24, 108, 48, "panel", colour)
        canvas.text(198, middle - 4, f"rank {rank}", 13, at="middle", bold=True)
        canvas.text(198, middle + 14, f"rows {start} to {stop - 1}", 12, "faint", "middle")
        canvas.arrow((256, middle), (288, middle))
        canvas.rectangle(292, middle - 24, 116, 48, "panel", "edge")
        canvas.text(350, middle - 4, "its gradients", 13, at="middle")
        canvas.text(350, middle + 14, "a partial sum", 12, "faint", "middle")
        canvas.arrow((412, middle), (496, middle))
        canvas.arrow((528, middle), (584, middle), "violet")
        canvas.rectangle(588, middle - 24, 144, 48, "panel", "violet")
        canvas.text(660, middle - 4, "global gradient", 13, at="middle")
        canvas.text(660, middle + 14, "same bits everywhere", 12, "faint", "middle")
    canvas.text(380, 314, "Every rank makes the update that the script makes alone.", 13, "faint", "middle")
    return canvas


GRADIENT = (
    ("matex_tf/hooks/", "functions.py", "the script, or Keras, calls a tf.function"),
    ("matex_tf/steps/", "function_calls.py", "the step plan of this call"),
    ("matex_tf/steps/", "capture.py", "capture: the graph as the script traces it"),
    ("matex_tf/steps/", "plan.py", "plan, and compare between ranks"),
    ("matex_tf/rewrite/", "propagate.py", "each tensor has a placement"),
    ("matex_tf/rewrite/", "bodies.py", "a copy, with waves of collectives where placements change"),
    ("matex_tf/steps/", "exchanger.py", "one message for all sums of a wave"),
    ("ops/", "collectives/reduce_gradients.py", "one TensorFlow op for the gradients"),
    ("ops/src/engine/", "update/inline.cc", "rendezvous: are all ranks at this collective?"),
    ("ops/src/engine/", "sums/allreduce.cc", "shared memory, MPI, ring or two levels"),
)
BATCH = (
    ("matex_tf/hooks/", "datasets.py", "the script, or Keras, iterates a dataset"),
    ("matex_tf/input/", "shared_batches.py", "an iterator of tickets in place of elements"),
    ("matex_tf/input/", "splitting.py", "each step: tickets, and the work on them"),
    ("matex_tf/input/", "batching.py", "batch, padded_batch: which tickets make a batch"),
    ("matex_tf/input/", "functions.py", "each map: what runs in order, what can wait"),
    ("matex_tf/input/", "tickets.py", "shuffle, repeat, take: the order of tickets"),
    ("matex_tf/steps/", "function_calls.py", "the step takes its next batch"),
    ("matex_tf/steps/", "batches.py", "this rank's slice of the batch"),
    ("matex_tf/steps/", "function_plan.py", "the copied graph is called with the slice"),
)
PACKAGES = {
    "matex_tf/hooks/": "blue",
    "matex_tf/steps/": "green",
    "matex_tf/rewrite/": "orange",
    "matex_tf/input/": "orange",
}


def draw_walk(files: tuple[tuple[str, str, str], ...], title: str, above: str, notes: dict[int, str]) -> Canvas:
    """Files one below the other, with what each does; `notes` stand beside a file, by its number."""
    step, top = 54, 58
    canvas = Canvas(760, top + step * len(files) + 6, title)
    canvas.text(300, 30, above, 14, at="middle", bold=True)
    canvas.arrow((300, 38), (300, top - 2))
    for number, (folder, file, words) in enumerate(files):
        if not (ROOT / folder / file).exists():
            raise FileNotFoundError(f"the picture of a walk names {folder}{file}")
        y, colour = top + number * step, PACKAGES.get(folder, "violet")
        canvas.rectangle(60, y, 480, 42, "panel", colour)
        canvas.text(34, y + 26, str(number + 1), 14, "faint", "middle", bold=True)
        canvas.text(72, y + 17, folder + file, 12, colour, bold=True)
        canvas.text(72, y + 34, words, 12, "ink")
        if number:
            canvas.arrow((300, y - 12), (300, y - 1))
        if number in notes:
            canvas.text(556, y + 26, notes[number], 12, "faint")
    return canvas


def gradient() -> Canvas:
    """The files that a gradient goes through, from the script to the sum."""
    notes = {0: "replaces TensorFlow's", 2: "TensorFlow graphs", 7: "TensorFlow ops", 8: "C++ on MPI alone"}
    return draw_walk(GRADIENT, "The walk of a gradient, from the script to the sum", "the script's step", notes)


def batch() -> Canvas:
    """The files that a batch goes through, from the dataset to the step."""
    notes = {0: "replaces TensorFlow's", 1: "reads ahead", 5: "every rank, all tickets", 7: "1/N of the rows"}
    return draw_walk(BATCH, "The walk of a batch, from the dataset to the step", "the script's dataset", notes)


def placements() -> Canvas:
    """The placement of each tensor of a small step."""
    canvas = Canvas(760, 250, "Placements in a step: which tensors are sharded, partial or replicated")
    boxes = (
        (24, 60, "x", "blue"),
        (24, 150, "weights", "grey"),
        (164, 60, "prediction", "blue"),
        (304, 60, "loss of a row", "blue"),
        (444, 60, "mean loss", "orange"),
        (444, 150, "gradient", "orange"),
        (604, 60, "loss", "green"),
        (604, 150, "gradient", "green"),
    )
    for x, y, words, colour in boxes:
        canvas.rectangle(x, y, 116 if x < 600 else 132, 44, "panel", colour)
        canvas.text(x + (58 if x < 600 else 66), y + 27, words, 13, at="middle", bold=True)
    for start, end in (
        ((140, 82), (164, 82)),
        ((280, 82), (304, 82)),
        ((420, 82), (444, 82)),
        ((502, 104), (502, 150)),
    ):
        canvas.arrow(start, end)
    canvas.arrow((140, 160), (186, 106))
    canvas.arrow((560, 82), (604, 82), "violet")
    canvas.arrow((560, 172), (604, 172), "violet")
    canvas.text(582, 132, "all-reduce", 12, "violet", "middle", bold=True)
    canvas.text(24, 36, "What each rank has of a tensor, and how the parts make up the whole:", 13, "faint")
    canvas.key(24, 226, (("blue", "sharded: its rows"), ("orange", "partial sum: a term of it")), 148)
    canvas.key(380, 226, (("grey", "replicated"), ("green", "replicated, after the sum")), 116)
    return canvas


def rows() -> Canvas:
    """Which rows of a file each rank reads, for each distribution of a `DataSet`."""
    count, batch, cell = 18, 6, 34
    canvas = Canvas(
        760, 306, f"Which of {count} rows each of {len(RANKS)} ranks holds, by the distribution of a DataSet"
    )
    canvas.key(128, 34, [(colour, f"rank {rank}") for rank, colour in enumerate(RANKS)], 90)
    kinds = (("block", None, "one slab for each rank"), ("cyclic", None, "turn by turn"))
    for number, (kind, size, words) in enumerate((*kinds, ("batch", batch, f"each batch of {batch} is cut"))):
        deal, y = Deal(count, len(RANKS), kind, size), 64 + number * 80
        canvas.text(20, y + 16, f'"{kind}"', 14, bold=True)
        for rank, colour in enumerate(RANKS):
            for row in deal.list_positions(rank, 0, deal.count_held(rank)):
                canvas.rectangle(128 + int(row) * cell, y, cell - 2, 30, colour, round_by=2)
        for row in range(count):
            canvas.text(128 + row * cell + cell / 2 - 1, y + 20, str(row), 12, "page", "middle", bold=True)
        canvas.text(128, y + 48, words, 12, "faint")
    return canvas
