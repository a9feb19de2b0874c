"""Writes files of names that no other process has, then opens each as scripts do; prints what each rank did not find.

`python opening_case.py FOLDER`
"""

import glob
import importlib.machinery
import importlib.resources
import importlib.util
import io
import json
import os
import pkgutil
import runpy
import sqlite3
import subprocess
import sys

import h5py
import netCDF4
import numpy as np
import pyarrow
import pyarrow.dataset
import tensorflow as tf

os.chdir(sys.argv[1])
name = f"own{os.getpid()}"
os.makedirs(f"{name}/logs")
os.makedirs(f"{name}/images/a")


def at(file):
    return f"{name}/{file}"


with open(at("lines.txt"), "w") as file:
    file.write("a\nb\nc\n")
with open(at("table.csv"), "w") as file:
    file.write("x,y\n1,2\n3,4\n")
with open(at(f"module_{name}.py"), "w") as file:
    file.write("value = 5\n")
with open(at("images/a/0.png"), "wb") as file:
    file.write(tf.io.encode_png(np.zeros((8, 8, 3), "u1")).numpy())
with tf.io.TFRecordWriter(at("records")) as writer:
    writer.write(b"one")
    writer.write(b"two")
tf.data.experimental.TFRecordWriter(at("more")).write(tf.data.Dataset.from_tensor_slices([b"x"]))
tf.raw_ops.WriteFile(filename=at("raw.txt"), contents="abc")
for step in range(2):
    tf.print("step", step, output_stream=f"file://{at('printed.txt')}")
np.save(at("array.npy"), np.arange(5))
with h5py.File(at("file.h5"), "w") as file:
    file["x"] = np.arange(3)
with netCDF4.Dataset(at("file.nc"), "w") as file:
    file.createDimension("t", 3)
    file.createVariable("x", "f4", ("t",))[:] = 1
database = sqlite3.connect(at("file.db"))
database.execute("create table t (x)")
database.execute("insert into t values (4)")
database.commit()
database.close()
events = tf.summary.create_file_writer(at("logs"))
with events.as_default():
    tf.summary.write("loss", tf.constant(1.0), step=1)
events.close()


def read_in_graph():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        queue = tf.compat.v1.train.string_input_producer([at("lines.txt")], num_epochs=1, shuffle=False)
        _, value = tf.compat.v1.TextLineReader().read(queue)
        session.run(tf.compat.v1.local_variables_initializer())
        coordinator = tf.train.Coordinator()
        tf.compat.v1.train.start_queue_runners(session, coordinator)
        found = session.run([value, tf.io.read_file(at("lines.txt"))])
        coordinator.request_stop()
        return [part.decode() for part in found]


def write_in_graph():
    """By names that are constants of a graph: a text, a cache and the names that match a pattern."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = tf.compat.v1.data.Dataset.range(3).cache(at("of_graph"))
        row = tf.compat.v1.data.make_one_shot_iterator(rows).get_next()
        session.run(tf.io.write_file(at("by_graph.txt"), "abc"))
        names = session.run(tf.io.matching_files(at("by_*.txt")))
        rows = [int(session.run(row)) for _ in range(3)]
        try:
            session.run(row)
        except tf.errors.OutOfRangeError:
            with open(at("by_graph.txt")) as file:
                return [rows, len(names), os.path.exists(at("of_graph.index")), file.read()]


def look_up(kind):
    file = kind(at("lines.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER)  # fmt: skip
    return int(tf.lookup.StaticHashTable(file, -1).size())


def import_own():
    sys.path.insert(0, name)
    return importlib.import_module(f"module_{name}").value


def import_in_order():
    """Modules that are in the folder `shared` before, which Python takes in the order of its path."""
    sys.path[:0] = ["shared", at("out")]
    os.makedirs("shared/models")  # a folder is a module where there is no other
    os.makedirs("shared/package/made")
    os.makedirs(at("out"))
    for path in ("shared/package/own.py", "shared/package/made/inner.py", at("out/settings.py"), at("out/later.py")):
        with open(path, "w") as file:
            file.write(f"value = '{name}'")
    of_python = ["__hello__", next(module for module in sys.builtin_module_names if module not in sys.modules)]
    for module in of_python:  # which are not looked for in folders
        with open(f"shared/{module}.py", "w") as file:
            file.write("value = 0")
    names = ["models", "package", "settings", "package.own", "package.made.inner", "later"]
    found = [importlib.import_module(module).value.replace(name, "own") for module in names]
    importlib.invalidate_caches()
    own = [hasattr(importlib.import_module(module), "value") for module in of_python]
    return [*found, importlib.import_module("package.made").inner.value == name, *own]


def import_rewritten():
    """A package of which a part is written anew, and the rest stays."""
    with open("shared/rewritten/__init__.py", "w") as file:
        file.write(f"value = '{name}'")
    modules = [importlib.import_module(f"rewritten{module}") for module in ("", ".part")]
    return [modules[0].value == name, modules[1].value]


def load_files():
    """By each way to load a file, under a name that all ranks write."""
    path = "shared/package/own.py"
    spec = importlib.util.spec_from_file_location("by_spec", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loader = importlib.machinery.SourceFileLoader("by_loader", path)
    values = [module.value, runpy.run_path(path)["value"], loader.load_module().value]
    own = pkgutil.get_data("package", "own.py").decode(), importlib.resources.read_text("package", "own.py")
    return [value == name for value in values] + [text == f"value = '{name}'" for text in own]


def change_by_h5f():
    shared, new = b"shared.h5", at("new.h5").encode()
    for flags in (h5py.h5f.ACC_RDWR, h5py.h5f.ACC_RDONLY):
        with h5py.File(h5py.h5f.open(shared, flags)) as file:
            if flags == h5py.h5f.ACC_RDWR:
                file["x"][0] += 1  # of what the test has put there
            found = int(file["x"][0])
    h5py.File(h5py.h5f.create(new)).attrs["of"] = "new"
    with h5py.File(new) as file:
        return [found, file.attrs["of"]]


def open_elsewhere():
    try:
        h5py.h5f.open(b"s3://bucket/file.h5", h5py.h5f.ACC_RDONLY)
    except OSError as error:
        return str(error).split("name = '")[1].split("'")[0]


def ask(place, *arguments, **options):
    connection = sqlite3.connect(place, *arguments, **options)
    try:
        return connection.execute("select x from t").fetchall()[0][0]
    finally:
        connection.close()


def connect_nowhere():
    try:
        sqlite3.connect()
    except TypeError as error:
        return "database" in str(error)


def count(dataset):
    return sum(1 for _ in dataset)


record_io = importlib.import_module("tensorflow.python.lib.io.tf_record")
text, records = at("lines.txt"), at("records")
CASES = {
    "summary_iterator": (
        lambda: [count(tf.compat.v1.train.summary_iterator(path)) for path in glob.glob(at("logs/*"))],
        [2],
    ),
    "tf_record_iterator": (lambda: count(tf.compat.v1.io.tf_record_iterator(records)), 2),
    "tf_record_random_reader": (lambda: record_io.tf_record_random_reader(records).read(0)[0].decode(), "one"),
    "TFRecordDataset": (lambda: count(tf.data.TFRecordDataset([records, records], num_parallel_reads=2)), 4),
    "TFRecordDataset, v1": (lambda: count(tf.compat.v1.data.TFRecordDataset(records)), 2),
    "of a dataset": (lambda: count(tf.data.Dataset.list_files(records).interleave(tf.data.TFRecordDataset)), 2),
    "experimental.TFRecordWriter": (lambda: count(tf.data.TFRecordDataset(at("more"))), 1),
    "TextLineDataset": (lambda: count(tf.data.TextLineDataset(text)), 3),
    "FixedLengthRecordDataset": (lambda: count(tf.data.FixedLengthRecordDataset(text, 2)), 3),
    "CsvDataset": (
        lambda: count(tf.data.experimental.CsvDataset(at("table.csv"), [tf.float32] * 2, header=True)),
        2,
    ),
    "make_csv_dataset": (
        lambda: count(tf.data.experimental.make_csv_dataset(at("table.csv"), 1, num_epochs=1)),
        2,
    ),
    "SqlDataset": (
        lambda: count(tf.data.experimental.SqlDataset("sqlite", at("file.db"), "select x from t", (tf.int32,))),
        1,
    ),
    "read_file": (lambda: tf.io.read_file(text).numpy().decode(), "a\nb\nc\n"),
    "read_file in a function": (
        lambda: tf.function(tf.io.read_file)(tf.constant(text)).numpy().decode(),
        "a\nb\nc\n",
    ),
    "raw_ops.ReadFile": (lambda: tf.raw_ops.ReadFile(filename=text).numpy().decode(), "a\nb\nc\n"),
    "raw_ops.WriteFile": (lambda: tf.io.read_file(at("raw.txt")).numpy().decode(), "abc"),
    "print": (lambda: tf.io.read_file(at("printed.txt")).numpy().decode(), "step 0\nstep 1\n"),
    "in a graph": (read_in_graph, ["a", "a\nb\nc\n"]),
    "written in a graph": (write_in_graph, [[0, 1, 2], 1, True, "abc"]),
    "gfile": (lambda: tf.io.gfile.GFile(text).read(), "a\nb\nc\n"),
    "TextFileInitializer": (lambda: look_up(tf.lookup.TextFileInitializer), 3),
    "StringLookup": (lambda: tf.keras.layers.StringLookup(vocabulary=text).vocabulary_size(), 4),
    "image_dataset_from_directory": (
        lambda: count(
            tf.keras.utils.image_dataset_from_directory(
                at("images"), image_size=(8, 8), verbose=False, labels=None, shuffle=False
            )
        ),
        1,
    ),
    "np.load": (lambda: int(np.load(at("array.npy")).sum()), 10),
    "np.load, mapped": (lambda: int(np.load(at("array.npy"), mmap_mode="r").sum()), 10),
    "np.memmap": (lambda: len(np.memmap(text, mode="r")), 6),
    "np.fromfile": (lambda: len(np.fromfile(text, "u1")), 6),
    "io.FileIO": (lambda: io.FileIO(text).read().decode(), "a\nb\nc\n"),
    "h5py": (lambda: int(h5py.File(at("file.h5"))["x"][:].sum()), 3),
    "h5py, in memory": (lambda: int(h5py.File(at("file.h5"), driver="core")["x"][:].sum()), 3),
    "h5py.is_hdf5": (lambda: bool(h5py.is_hdf5(at("file.h5"))), True),
    "h5py.h5f, to change": (change_by_h5f, [4, "new"]),
    "h5py.h5f, elsewhere": (open_elsewhere, "s3://bucket/file.h5"),
    "h5py.h5f": (lambda: h5py.h5f.open(at("file.h5").encode()).name.endswith(b"file.h5"), True),
    "netCDF4": (lambda: float(netCDF4.Dataset(at("file.nc"))["x"][:].sum()), 3),
    "sqlite3": (lambda: ask(at("file.db")), 4),
    "sqlite3, by a URI": (lambda: ask(f"file:{at('file.db')}?mode=ro", uri=True), 4),
    "sqlite3, by a URI, with all arguments by position": (
        lambda: ask(f"file:{at('file.db')}?mode=ro", 5.0, 0, "", True, sqlite3.Connection, 128, True),
        4,
    ),
    "sqlite3, without a database": (connect_nowhere, True),
    "sqlite3, by a whole URI": (lambda: ask(f"file://{os.path.abspath(at('file.db'))}", uri=True), 4),
    "pyarrow.dataset": (lambda: pyarrow.dataset.dataset(at("table.csv"), format="csv").count_rows(), 2),
    "pyarrow.memory_map": (lambda: pyarrow.memory_map(text).read().decode(), "a\nb\nc\n"),
    "subprocess": (lambda: subprocess.run(["cat", text], capture_output=True, check=True).stdout.decode(), "a\nb\nc\n"),
    "import": (import_own, 5),
    "import, in order": (import_in_order, ["models", "package", "settings", "own", "own", "own", True, False, False]),
    "import, in part": (import_rewritten, [True, "part"]),
    "import, by a file": (load_files, [True] * 5),
}
wrong = {}
for case, (find, expected) in CASES.items():
    try:
        found = find()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found != expected:
        wrong[case] = str(found)[:300]
if "matex_tf" in sys.modules:
    objects = importlib.import_module("matex_tf.runtime.objects")
    everyone = objects.allgather(wrong, "what was not found")
else:
    everyone = [wrong]
print("WRONG", json.dumps(everyone))
