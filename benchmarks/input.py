"""What ranks save of reading and decoding: bytes, decoded rows and rows a second, beside the script alone, in one run.

    python benchmarks/input.py [--rounds 3] [--rows 384] [--pipelines images examples records text cached]

Each process has one core. "alone" is one process, "ranks" are two by `matex run`; they take turns, and figures are
medians of the epochs after the first. The physical reference is "halves": two processes without the library, each with
half of the rows, which is all that two cores can do.

An epoch has --rows JPEGs, 8 times as many records or 32 times as many lines, so that it takes at least half a second:
the start of an epoch takes ranks some 20 ms longer than the script alone. "examples" are records of `tf.train.Example`
with a JPEG each, as ImageNet is kept. "records" are raw bytes: little work for each row, so that half of the time of a
step is that of `fit` itself, which ranks do not divide.

"autoshard" is the input of `tf.distribute.MultiWorkerMirroredStrategy` in two processes, by its policy DATA: what each
reads and decodes, as a share of what the script alone does, without any training. `fit` of Keras 3 does not run under
that strategy, so that there are no rows a second. The policy FILE gives other batches, and refuses these pipelines,
which have a list of names, or one file for two processes. "-": nearly nothing is read, as of `cache` after an epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from matex_tf.launch import command_line, run_options

EPOCHS = 4
LITTLE = 1 << 16  # bytes of an epoch
PIPELINES = {"images": 1, "examples": 1, "records": 8, "text": 32, "cached": 1}  # rows of an epoch / --rows


def encode_images(count: int, generator: Any) -> Iterator[Any]:
    """JPEGs of 500 x 375, each a scalar string, from a generator of NumPy."""
    import numpy as np
    import tensorflow as tf

    smooth = generator.integers(0, 256, (24, 32, 3)).astype(np.float32)
    for number in range(count):
        image = tf.image.resize(np.roll(smooth, number, 0), [375, 500]) + generator.normal(0, 12, (375, 500, 3))
        yield tf.io.encode_jpeg(tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8))


def make_data(folder: Path, rows: int) -> None:
    """JPEGs of 500 x 375, in files and in records; records of 100 KB, and lines of 200 numbers.

    rows: the number of JPEGs.
    """
    import numpy as np
    import tensorflow as tf

    generator = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(folder / "examples.tfrecord")) as examples:
        for number, encoded in enumerate(encode_images(rows, generator)):
            tf.io.write_file(str(folder / f"{number:05}.jpg"), encoded)
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded.numpy()]))
            example = tf.train.Example(features=tf.train.Features(feature={"image": image}))
            examples.write(example.SerializeToString())
    with tf.io.TFRecordWriter(str(folder / "rows.tfrecord")) as records:
        for _ in range(rows * PIPELINES["records"]):
            records.write(generator.bytes(100_000))
    with (folder / "rows.csv").open("w") as lines:
        for _ in range(rows * PIPELINES["text"]):
            lines.write(",".join(f"{one:.6f}" for one in generator.random(200)) + "\n")


def make_pipeline(name: str, folder: Path, part: slice, note=None):
    """The pipeline, the shape of its rows, and their number; `note` is called with each row that is worked on."""
    import tensorflow as tf

    all_paths = sorted(map(str, folder.glob("*.jpg")))
    paths = all_paths[part]

    def decode(encoded):
        return tf.image.resize(tf.io.decode_jpeg(encoded, 3), [224, 224]) / 255.0

    def load(path):
        return decode(tf.io.read_file(path))

    def parse_example(record):
        return decode(tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})["image"])

    def parse(record):
        return tf.reshape(tf.cast(tf.io.decode_raw(record, tf.uint8), tf.float32), [50, 40, 50])[:, :, :3] / 255.0

    def split(line):
        numbers = tf.strings.to_number(tf.strings.split([line], ",").values)
        return tf.reshape(tf.ensure_shape(numbers, [200]), [10, 20, 1])

    step = 1 if part.step is None else part.step
    if name in ("images", "cached"):
        rows = tf.data.Dataset.from_tensor_slices(paths)
        work, shape = load, (224, 224, 3)
    elif name == "examples":
        rows = tf.data.TFRecordDataset(str(folder / "examples.tfrecord")).shard(step, part.start or 0)
        work, shape = parse_example, (224, 224, 3)
    elif name == "records":
        rows = tf.data.TFRecordDataset(str(folder / "rows.tfrecord")).shard(step, part.start or 0)
        work, shape = parse, (50, 40, 3)
    else:
        rows = tf.data.TextLineDataset(str(folder / "rows.csv")).shard(step, part.start or 0)
        work, shape = split, (10, 20, 1)
    if note is not None:
        counted = work

        def work(row):
            return tf.ensure_shape(tf.numpy_function(note, [counted(row)], tf.float32, stateful=False), shape)

    rows = rows.map(work, tf.data.AUTOTUNE)
    rows = rows.cache() if name == "cached" else rows
    batches = rows.batch(32 // step).map(lambda x: (x, tf.zeros([tf.shape(x)[0], 1])))
    return batches.prefetch(2), shape, len(range(len(all_paths) * PIPELINES[name])[part])


def work(name: str, folder: Path, setting: str, number: int) -> None:
    """Train a small CNN; print rows a second and bytes of an epoch."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", number)))
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import keras

    part = slice(number, None, 2) if setting == "halves" else slice(None)
    batches, shape, rows = make_pipeline(name, folder, part)
    layers = [keras.layers.Conv2D(8, 5, 4, activation="relu", padding="same"), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    speeds, read = [], []

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began, self.read = time.perf_counter(), count_read()

        def on_epoch_end(self, epoch, logs=None):
            speeds.append(rows / (time.perf_counter() - self.began))
            read.append(count_read() - self.read)

    warnings.simplefilter("ignore")
    model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=[Times()])
    if rank == number:
        print(json.dumps({"speed": median(speeds[1:]), "bytes": median(read[1:]), "first": speeds[0]}), flush=True)


def distribute(name: str, folder: Path, number: int) -> None:
    """Go through the pipeline as tf.distribute shards it; print the bytes and decoded rows of an epoch."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    import tensorflow as tf

    decoded = [0]

    def note(row):
        decoded[0] += 1
        return row

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batches, _, rows = make_pipeline(name, folder, slice(None), note)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = strategy.experimental_distribute_dataset(batches.with_options(options))
    found = []
    for _ in range(EPOCHS):
        before = count_read(), decoded[0]
        for _ in batches:
            pass
        found.append((count_read() - before[0], (decoded[0] - before[1]) / rows))
    reads, shares = zip(*found)
    print(json.dumps({"speed": 0.0, "bytes": median(reads[1:]), "decoded": max(shares)}), flush=True)


def choose_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def count_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def run(name: str, folder: Path, setting: str) -> dict[str, float]:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "MATEX_QUIET": "1", **os.environ}
    words = [str(Path(__file__).resolve()), "--worker", name, str(folder), setting]
    if setting == "ranks":
        commands = [command_line.make_command_line(run_options.Run(2, [*words, "0"]))]
    else:
        commands = [[sys.executable, *words, str(number)] for number in range(1 if setting == "alone" else 2)]
    environments = [environment for _ in commands]
    if setting == "autoshard":
        cluster = {"worker": [f"127.0.0.1:{port}" for port in choose_ports(2)]}
        tasks = [{"cluster": cluster, "task": {"type": "worker", "index": number}} for number in range(2)]
        environments = [{**environment, "TF_CONFIG": json.dumps(task)} for task in tasks]
    children = [
        subprocess.Popen(command, env=one, stdout=subprocess.PIPE, text=True)
        for command, one in zip(commands, environments)
    ]
    found = []
    for child in children:
        output, _ = child.communicate(timeout=600)
        if child.returncode:
            sys.exit(f"input: {setting} of {name} ended with exit code {child.returncode}")
        found.append(json.loads(next(line for line in output.splitlines() if line.startswith("{"))))
    total = sum(one["speed"] for one in found) if setting == "halves" else found[0]["speed"]
    return {**found[0], "speed": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=384)
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=PIPELINES)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        name, folder, setting, number = given.worker
        if setting == "autoshard":
            distribute(name, Path(folder), int(number))
        else:
            work(name, Path(folder), setting, int(number))
        return
    print(f"{'pipeline':10} {'alone rows/s':>13} {'ranks':>9} {'halves':>9} {'ranks/alone':>12} {'halves/alone':>13} "
          f"{'bytes of a rank':>16} {'by autoshard':>13} {'it decodes':>11}")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        make_data(Path(temporary), given.rows)
        for name in given.pipelines:
            settings = ("alone", "ranks", "halves")
            rounds = [
                {setting: run(name, Path(temporary), setting) for setting in settings} for _ in range(given.rounds)
            ]
            alone, ranks, halves = (median(one[setting]["speed"] for one in rounds) for setting in settings)
            sharded = run(name, Path(temporary), "autoshard")
            read = [median(one[setting]["bytes"] for one in rounds) for setting in ("alone", "ranks")]
            shares = [f"{one / read[0]:.0%}" if read[0] > LITTLE else "-" for one in (read[1], sharded["bytes"])]
            print(
                f"{name:10} {alone:13.1f} {ranks:9.1f} {halves:9.1f} {ranks / alone:12.2f} {halves / alone:13.2f} "
                f"{shares[0]:>16} {shares[1]:>13} {sharded['decoded']:11.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
