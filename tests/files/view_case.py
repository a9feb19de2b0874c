"""Makes, reads, renames and removes files as scripts do; each rank is to find what the script alone finds.

`python view_case.py FOLDER LATE`: rank 0 (LATE=first) or the others (LATE=others) come to everything a second later.
What each rank saw is printed at the end.
"""

# ruff: noqa: SIM115, UP020 (files are opened here in every way that scripts have)

import glob
import io
import json
import logging
import os
import pathlib
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import h5py
import netCDF4
import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import csv, feather, ipc, orc, parquet

folder, late = sys.argv[1:]
ranks = sys.modules.get("matex_tf")
rank = sys.modules["matex_tf.world.world"].get_world().rank if ranks else 0
seen = []


def tree(top):
    return sorted(os.path.relpath(os.path.join(where, name), top) for where, below, names in os.walk(top)
                  for name in [*names, *below])  # fmt: skip


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except OSError as error:
        return type(error).__name__
    return "no error"


if ranks and (rank == 0) == (late == "first"):
    time.sleep(1.5)
os.chdir(folder)
out = pathlib.Path(folder, "out")

# The files of a transaction lie on the disk while the others list the folder.
seen.append(["before", sorted(os.listdir())])
with sqlite3.connect("first.db") as database:
    database.execute("create table t (x)")
    database.execute("insert into t values (4)")
    if ranks and rank == 0 and late == "others":
        time.sleep(2)

# Made where it is not there, as scripts do.
seen.append(["there", os.path.exists("out"), out.is_dir()])
if not os.path.exists("out"):
    os.makedirs("out/deep/er")
seen.append(["made", error_of(os.mkdir, "out"), tree("out"), os.path.isdir("out/deep")])
if os.path.exists("results.csv"):
    raise SystemExit("results.csv is there already")
with open("results.csv", "w") as file:
    file.write("a,b\n")
    seen.append(file.name)
with open("results.csv", "a") as file:
    file.write("1,2\n")
seen.append(open("results.csv").read())
seen.append(["exclusive", error_of(open, "results.csv", "x")])
number = 1
while os.path.exists(f"run_{number}"):
    number += 1
os.mkdir(f"run_{number}")
seen.append(["run", number, sorted(os.listdir())])

# What was there before: read and changed, without any meeting of the ranks.
seen.append([open("before.txt").read(), sorted(os.listdir()), os.path.exists("remove_me")])
os.remove("remove_me")
seen.append(["removed", os.path.exists("remove_me"), error_of(os.remove, "remove_me"), "remove_me" in os.listdir()])
with open("before.txt", "a") as file:
    file.write("appended\n")
with open("before.txt", "r+") as file:
    file.write("START")
seen.append(pathlib.Path("before.txt").read_text())
if ranks:
    ranks.barrier()
seen.append([open("before/inner.txt").read(), os.listdir("before")])
if ranks:
    ranks.barrier()
shutil.rmtree("before")
seen.append(["gone", os.path.exists("before"), error_of(open, "before/inner.txt"), error_of(shutil.rmtree, "before")])
raced = []
for name in sorted(os.listdir("race")):
    if ranks:
        ranks.barrier()
    for path in glob.glob(f"race/{name}/f*") if int(name) % 2 else [f"race/{name}/file"]:
        os.remove(path)  # now by one rank first, now by the other
    raced.append(os.listdir(f"race/{name}"))
    if ranks:
        ranks.barrier()
    shutil.rmtree(f"race/{name}")
    if ranks:
        ranks.barrier()
    os.rmdir("race") if len(os.listdir("race")) == 0 else None
seen.append(["raced", raced, os.path.exists("race")])
os.makedirs("before")
seen.append(["anew", os.listdir("before"), os.path.exists("before/inner.txt")])

# Libraries of Python.
np.save("out/array.npy", np.arange(3))
np.savez("out/arrays.npz", x=np.arange(4))
np.savetxt("out/text.txt", np.eye(2))
np.arange(3.0).tofile("out/raw")
memory = np.memmap("out/memory", "int32", "w+", shape=(3,))
memory[:] = 7
memory.flush()
pickle.dump({"a": 1}, open("out/pickle", "wb"))
seen.append([np.load("out/array.npy").tolist(), np.load("out/arrays.npz")["x"].tolist(),
             np.loadtxt("out/text.txt").tolist(), np.fromfile("out/raw").tolist(),
             np.memmap("out/memory", "int32", "r", shape=(3,)).tolist(),
             pickle.load(open("out/pickle", "rb"))])  # fmt: skip
with h5py.File("out/data.h5", "w") as file:
    file["x"] = np.arange(5)
with h5py.File("out/data.h5", "a") as file:
    file["y"] = np.arange(2)
with h5py.File("out/data.h5") as file:
    seen.append(["h5", {name: file[name][:].tolist() for name in file}])
for mode in ("w", "a"):
    with netCDF4.Dataset("out/grid.nc", mode) as file:
        if mode == "w":
            file.createDimension("x", 3)
            file.of_rank = rank  # what is left on disk is rank 0's
        file.createVariable(f"t_{mode}", "f4", ("x",))[:] = [1, 2, 3]
        group = file.createGroup(mode)
        assert isinstance(file, netCDF4.Dataset) and isinstance(group, netCDF4.Dataset)
with netCDF4.Dataset("out/grid.nc") as file:
    seen.append(["netcdf", {name: file[name][:].tolist() for name in file.variables}, list(file.groups)])
try:
    netCDF4.Dataset("out/grid.nc", "w", clobber=False)
except OSError as error:
    seen.append(["netcdf", type(error).__name__])
with netCDF4.Dataset("out/no.nc", "w", diskless=True) as file:
    seen.append(["netcdf", file.filepath()])
parquet.write_table(pyarrow.table({"a": [1, 2], "of": [rank, rank]}), "out/table.parquet")
assert parquet.read_table("out/table.parquet")["of"].to_pylist() == [rank, rank]
seen.append(["parquet", parquet.read_table("out/table.parquet", columns=["a"]).to_pydict(),
             parquet.ParquetFile("out/table.parquet").metadata.num_rows])  # fmt: skip
years = pyarrow.table({"year": [1, 1, 2], "x": [1.0, 2.0, 3.0]})
parquet.write_to_dataset(years, "out/years", partition_cols=["year"], basename_template="part-{i}.parquet")
seen.append(["partitioned", sorted(parquet.read_table("out/years")["x"].to_pylist()),
             parquet.read_metadata(where="out/table.parquet").num_rows,
             parquet.ParquetFile(source="out/table.parquet").metadata.num_rows])  # fmt: skip
numbers = pyarrow.table({"a": [1, 2], "of": [rank, rank]})
csv.write_csv(numbers, "out/arrow.csv")
with csv.CSVWriter("out/rows.csv", numbers.schema) as writer:
    writer.write_table(numbers)
feather.write_feather(numbers, "out/table.feather")
orc.write_table(numbers, "out/table.orc")
with ipc.new_file("out/table.arrow", numbers.schema) as writer:
    writer.write_table(numbers)
with pyarrow.OSFile("out/stream.arrow", "wb") as sink, ipc.new_stream(sink, numbers.schema) as writer:
    writer.write_table(numbers)
with pyarrow.output_stream("out/stream.bin") as sink:
    sink.write(b"%d" % rank)
with pyarrow.OSFile("out/stream.arrow") as source, pyarrow.input_stream("out/stream.bin") as few:
    back = [csv.read_csv("out/arrow.csv"), csv.read_csv("out/rows.csv"), feather.read_table("out/table.feather"),
            orc.read_table("out/table.orc"), ipc.open_file("out/table.arrow").read_all(),
            ipc.open_stream(source).read_all()]  # fmt: skip
    assert all(table["of"].to_pylist() == [rank, rank] for table in back) and few.read() == b"%d" % rank
seen.append(["arrow", [table["a"].to_pylist() for table in back]])
with open("table/_rows.json", "w") as file:
    file.write("{}")
seen.append(["folder", parquet.read_table("table")["x"].to_pylist()])
for number in range(2):
    with netCDF4.Dataset(f"out/run_{number}.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("time", None)
        file.createVariable("x", "i4", ("time",))[:] = [number, 10 * number]
with netCDF4.MFDataset("out/run_*.nc") as file:
    seen.append(["many", file["x"][:].tolist()])


class Own(netCDF4.Dataset):
    pass


with netCDF4.Dataset("out/grid.nc") as file, Own("out/grid.nc") as own:
    seen.append([isinstance(file, Own), isinstance(own, Own), issubclass(Own, netCDF4.Dataset)])
os.mkdir("out/database")
with sqlite3.connect("out/database/data.db") as database:
    database.execute("create table t (x)")
    database.execute("insert into t values (5)")
with sqlite3.connect(database="out/database/data.db") as database:
    seen.append(["sqlite", database.execute("select x from t").fetchall()])
with zipfile.ZipFile("out/a.zip", "w") as archive:
    archive.writestr("x.txt", "zipped")
zipfile.ZipFile("out/a.zip").extractall("out/unzipped")
with tarfile.open("out/a.tar.gz", "w:gz") as archive:
    archive.add("out/unzipped", "tarred")
tarfile.open("out/a.tar.gz").extractall("out")
seen.append(pathlib.Path("out/tarred/x.txt").read_text())
handler = logging.FileHandler("out/log.txt")
logging.getLogger("case").addHandler(handler)
logging.getLogger("case").warning("logged")
seen.append(open("out/log.txt").read())

# Names: rename, replace, copy, move, link.
with open("out/new.json.tmp", "w") as file:
    json.dump([1], file)
os.replace("out/new.json.tmp", "out/new.json")
os.rename("out/unzipped", "out/renamed")
shutil.copy("out/new.json", "out/copy.json")
shutil.copytree("out/renamed", "out/copied")
shutil.move("out/copied", "out/moved")
os.symlink("new.json", "out/latest")
handle, temporary = tempfile.mkstemp()
os.write(handle, b"from tempfile")
os.close(handle)
shutil.move(temporary, "out/from_temporary")
with tempfile.TemporaryDirectory() as own, open(os.path.join(own, "x"), "w") as file:
    file.write("x")
    file.flush()
    seen.append(["temporary", os.listdir(own), os.path.isfile(os.path.join(own, "x"))])
pathlib.Path("out/touched").touch()
pathlib.Path("out/touched").chmod(0o600)
seen += [open("out/latest").read(), open("out/from_temporary").read(), oct(os.stat("out/touched").st_mode)]
seen.append([sorted(map(str, pathlib.Path("out").glob("**/*.txt"))), sorted(glob.glob("out/*.json"))])
with os.scandir("out") as entries:
    seen.append(
        sorted([entry.name, entry.path, entry.is_dir(), entry.is_file(), entry.is_symlink()] for entry in entries)
    )
os.makedirs("listed")
pathlib.Path("listed/file").write_text("of the script")
for listed in ("listed", "listed_before"):  # the second is on the disk
    with os.scandir(listed) as entries:
        (entry,) = entries
    size = entry.stat().st_size
    os.remove(entry.path)
    seen.append([size, entry.stat().st_size, os.path.exists(entry.path)])  # an entry keeps its state
seen.append(["tree", tree(folder)])
os.makedirs("elsewhere")
os.chdir("elsewhere")
io.open("relative", "w").close()
seen.append(["cwd", os.path.relpath(os.getcwd(), folder), os.listdir(), os.path.exists("../out/new.json")])
os.chdir("..")

# TensorFlow's own files.
tf.io.gfile.makedirs("out/gfile/deep")
with tf.io.gfile.GFile("out/gfile/a.txt", "w") as file:
    file.write("of gfile")
tf.io.gfile.copy("out/gfile/a.txt", "out/gfile/deep/b.txt")
tf.io.gfile.rename("out/gfile/deep/b.txt", "out/gfile/deep/c.txt")
tf.io.write_file("out/gfile/op.txt", "of an op")
seen.append(["gfile", sorted(tf.io.gfile.listdir("out/gfile")), sorted(tf.io.gfile.glob("out/gfile/*/*.txt")),
             tf.io.gfile.exists("out/gfile/deep/b.txt"), tf.io.gfile.isdir("out/gfile/deep"),
             tf.io.gfile.GFile("out/gfile/deep/c.txt").read(), tf.io.gfile.stat("out/gfile/a.txt").length,
             tf.io.read_file("out/gfile/op.txt").numpy().decode(),
             sorted(name for _, _, names in tf.io.gfile.walk("out/gfile") for name in names)])  # fmt: skip
seen.append(["within a file", tf.io.gfile.exists("out/gfile/a.txt/inside"), tf.io.gfile.exists("no/such/folder")])
tf.io.gfile.GFile("out/gfile/own.txt", "w").write(str(rank))
tf.io.gfile.copy("out/gfile/own.txt", "ram://own.txt")  # a file system of this process
tf.io.gfile.copy("ram://own.txt", "out/gfile/own_again.txt")
assert open("out/gfile/own_again.txt").read() == tf.io.gfile.GFile("ram://own.txt").read() == str(rank)
seen.append(["matching", len(tf.io.matching_files(["out/gfile/o*.txt", "out/gfile/own*.txt"]))])


@tf.function
def write_at(number):
    path = tf.strings.join(["out/gfile/computed-", tf.strings.as_string(number)])
    with tf.control_dependencies([tf.io.write_file(path, str(rank))]):  # TensorFlow does not order them by itself
        return tf.io.read_file(path)


assert write_at(tf.constant(3)) == str(rank)
os.symlink(os.path.abspath("looped"), "looped")
try:
    open("looped", "w")
    seen.append("wrote through a loop")
except OSError as error:
    seen.append([error.errno, os.access("looped", os.F_OK), os.path.exists("looped"), os.path.lexists("looped")])
os.remove("looped")
tf.io.write_file("out/gfile/b.txt", "")
tf.io.gfile.rmtree("out/gfile/b.txt")  # also removes a file
tf.io.gfile.remove("out/gfile/a.txt")
tf.io.gfile.rmtree("out/gfile/deep")
seen.append(["gfile", sorted(tf.io.gfile.listdir("out/gfile"))])
for part in range(3):
    with tf.io.TFRecordWriter(f"out/part-{part}.tfrecord") as writer:
        writer.write(b"record %d" % part)
names = tf.data.Dataset.list_files("out/part-*.tfrecord", shuffle=False)
seen.append(["records", [x.numpy().decode() for x in tf.data.TFRecordDataset(["out/part-0.tfrecord"])],
             [x.numpy().decode() for x in names.interleave(tf.data.TFRecordDataset)],
             [x.numpy().decode() for x in tf.data.TextLineDataset("results.csv")],
             [x.numpy().decode() for x in tf.data.Dataset.from_tensor_slices(["results.csv"]).map(tf.io.read_file)],
             [os.path.basename(x.numpy().decode()) for x in names]])  # fmt: skip
table = tf.data.experimental.make_csv_dataset("results.csv", 1, num_epochs=1, shuffle=False)
with open("out/words.txt", "w") as file:
    file.write("one\ntwo\n")
words = tf.lookup.TextFileInitializer("out/words.txt", tf.string, 0, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
with sqlite3.connect("out/table.db") as database:
    database.execute("create table t (x integer)")
    database.execute("insert into t values (6)")
query = tf.data.experimental.SqlDataset("sqlite", "out/table.db", "select x from t", (tf.int32,))
seen.append(["tables", [{name: x.numpy().tolist() for name, x in row.items()} for row in table],
             [[int(x) for x in row] for row in tf.data.experimental.CsvDataset("results.csv", [0, 0], header=True)],
             tf.lookup.StaticHashTable(words, -1).lookup(tf.constant(["two", "none"])).numpy().tolist(),
             [int(row[0]) for row in query],
             [x.decode() for x in tf.io.matching_files("out/*.json").numpy().tolist()]])  # fmt: skip
os.mkdir("made_by_datasets")
numbers = tf.data.Dataset.range(5)
for _ in range(2):
    cached = numbers.map(lambda x: 2 * x).cache("made_by_datasets/cache")
    kept = numbers.snapshot("made_by_datasets/snapshot")
    seen.append(["cached", [int(x) for x in cached], sorted(int(x) for x in kept)])
numbers.save("made_by_datasets/saved")
seen.append(["saved", sorted(int(x) for x in tf.data.Dataset.load("made_by_datasets/saved"))])
if ranks:
    ranks.barrier()  # what rank 0 keeps there is whole, and nothing of its files comes or goes on the disk meanwhile
    # Alone TensorFlow goes through several folders in an order that is another each time.
    assert tf.io.gfile.glob("table/../*/*") == glob.glob("table/../*/*")
    ranks.barrier()
seen.append(["kept", os.path.exists("made_by_datasets/cache.index"), [int(x) for x in cached]])
shutil.rmtree("made_by_datasets")
cached = numbers.cache("made_later/cache")
os.makedirs("made_later", exist_ok=True)
seen.append(["cached in a later folder", [int(x) for x in cached], [int(x) for x in numbers.cache("made_later/cache")]])
shutil.rmtree("made_later")
writer = tf.summary.create_file_writer("out/board")
with writer.as_default():
    tf.summary.write("x", 1.0, step=0)
writer.close()
with tf.compat.v1.Graph().as_default():
    tf.compat.v1.summary.FileWriter("out/board1", tf.compat.v1.get_default_graph()).close()
seen.append(["boards", len(os.listdir("out/board")), len(os.listdir("out/board1"))])

# Commands are run once, on the files as they are, and every rank has what came of them.
os.system("mkdir -p out/cmd; echo line >> out/cmd/log")
with open("out/cmd/a", "w") as file:
    file.write("one\n")
seen.append([os.system("sed -i s/one/two/ out/cmd/a && mv out/cmd/a out/cmd/b"), open("out/cmd/b").read()])
number = subprocess.run(["sh", "-c", "cat out/cmd/b; echo $$ >&2"], capture_output=True, text=True, check=True)
shells = [number.stderr, subprocess.check_output("echo $$", shell=True, text=True), subprocess.getoutput("echo $$"),
          os.popen("echo $$").read()]  # fmt: skip
seen.append([number.stdout, os.popen("cat out/cmd/log").read(), os.popen("exit 3").close(),
             subprocess.getoutput("cat out/cmd/b"), sorted(os.listdir("out/cmd"))])  # fmt: skip
with open("out/cmd/said", "w") as file:
    subprocess.call(["echo", "hello"], stdout=file)
try:
    subprocess.check_call(["false"])
except subprocess.CalledProcessError as error:
    seen.append([error.returncode, error_of(subprocess.run, ["no-such-program"]), open("out/cmd/said").read()])
shutil.rmtree("out/cmd")
os.system("mkdir out/cmd; echo new > out/cmd/c")
seen.append([os.listdir("out/cmd"), open("out/cmd/c").read()])
own = tempfile.mkdtemp()
subprocess.run(["sh", "-c", f"echo {rank} > {own}/x"], check=True)
assert open(own + "/x").read() == f"{rank}\n", "a command in each rank's own folder is that rank's"
shutil.rmtree(own)
if ranks:
    everyone = sys.modules["matex_tf.runtime.objects"].allgather(shells, "who ran it")
    assert all(each == shells for each in everyone), everyone

# What only rank 0 wrote is there for the others once they have met.
if ranks:
    if rank == 0:
        pathlib.Path("by_rank_0").write_text("of rank 0")
    ranks.barrier()
    seen.append(open("by_rank_0").read() + str(os.path.exists("by_rank_0")))
    if ranks.rank() == 0:  # who asks for the rank says who runs what
        subprocess.run(["true"], check=True)
    everyone = sys.modules["matex_tf.runtime.objects"].allgather(seen, "what each rank saw")
    print("SEEN" + json.dumps([each[:-1] for each in everyone]))
    assert all(each[-1] == "of rank 0True" for each in everyone), [each[-1] for each in everyone]
    if rank == 0:
        os.remove("by_rank_0")
else:
    print("SEEN" + json.dumps([seen]))
