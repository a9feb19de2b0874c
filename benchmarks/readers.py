"""Readers beside the plain libraries: seconds, bytes and memory of each rank's share.

    python benchmarks/readers.py                        # all formats, 1, 2 and 4 ranks
    python benchmarks/readers.py --formats CSV --ranks 2 --megabytes 100 --turns 3
    python benchmarks/readers.py --in-turns 12               # times alone, on a machine with other work
    matex run -n 2 benchmarks/readers.py --exchange 100      # the cost of reshuffle="epoch"

Makes the files first (400 MB each). Each measurement is one process for each rank, all at once, of CSV under mpirun,
because its ranks exchange rows; the reader and the plain library (netCDF4, h5py, pyarrow, np.fromfile) take turns, so
that both see the same machine. The figures are medians of the slowest rank's times, from opening to arrays in memory;
only the ratio of one line compares. pyarrow knows no shares: beside N ranks stands the time of one process for the
whole file, over N, with as many threads as one of the ranks has cores. Warm: the files are in the
page cache. Cold: each process first asks the kernel to drop the file from it. cpu/cpu: processor time of all ranks,
reader over plain, which other work on the machine does not change. read/share: bytes asked of the kernel
over the bytes of the rank's share (of the text, for CSV); disk/share: those that came from the disk; peak/share: the
most memory taken over the bytes of the arrays.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 20


def make(folder, megabytes):
    """{format: path} of files of about so many megabytes, made anew where they are missing."""
    import h5py
    import netCDF4

    rows = megabytes * 2**20 // (256 * 256 * 4)
    random = np.random.default_rng(0)
    paths = {
        name: folder / f"benchmark-{megabytes}.{end}"
        for name, end in (("NETCDF", "nc"), ("HDF5", "h5"), ("CSV", "csv"), ("MNIST", "idx"))
    }
    if not paths["NETCDF"].exists():
        with netCDF4.Dataset(paths["NETCDF"], "w") as file:
            for name, length in (("time", rows), ("y", 256), ("x", 256)):
                file.createDimension(name, length)
            variable = file.createVariable("x", "f4", ("time", "y", "x"), chunksizes=(4, 256, 256))
            for start in range(0, rows, 64):
                variable[start : start + 64] = random.standard_normal((min(64, rows - start), 256, 256), np.float32)
    if not paths["HDF5"].exists():
        with h5py.File(paths["HDF5"], "w") as file:
            dataset = file.create_dataset("x", (rows, 256, 256), "f4", chunks=(4, 256, 256))
            for start in range(0, rows, 64):
                dataset[start : start + 64] = random.standard_normal((min(64, rows - start), 256, 256), np.float32)
    if not paths["CSV"].exists():
        with open(paths["CSV"], "w") as file:
            file.write(",".join(f"c{number}" for number in range(COLUMNS)) + "\n")
            lines = (
                "\n".join(
                    ",".join(f"{value:.6f}" for value in row) for row in random.standard_normal((20_000, COLUMNS))
                )
                + "\n"
            )
            file.writelines(lines for _ in range(max(1, megabytes * 2**20 // len(lines))))
    if not paths["MNIST"].exists():
        paths["MNIST"].mkdir()
        count = megabytes * 2**20 // 784
        for part, number in (("train", count), ("t10k", 1)):
            for name, shape in (("images-idx3", (number, 28, 28)), ("labels-idx1", (number,))):
                head = bytes([0, 0, 8, len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)
                with open(paths["MNIST"] / f"{part}-{name}-ubyte", "wb") as file:
                    file.write(head)
                    random.integers(0, 256, shape, np.uint8).tofile(file)
    return paths


def rows_of(count, rank, size):
    return rank * count // size, (rank + 1) * count // size


def plain_netcdf(path, rank, size):
    import netCDF4

    with netCDF4.Dataset(path) as file:
        start, stop = rows_of(len(file["x"]), rank, size)
        return np.asarray(file["x"][start:stop])


def plain_hdf5(path, rank, size):
    import h5py

    with h5py.File(path) as file:
        start, stop = rows_of(len(file["x"]), rank, size)
        return file["x"][start:stop]


def plain_csv(path, rank, size):
    """The whole file, into an array, as the reader does, on the cores that one of so many ranks has."""
    import pyarrow
    from pyarrow import csv

    pyarrow.set_cpu_count(max(1, len(os.sched_getaffinity(0)) // size))
    table = csv.read_csv(path)
    rows = np.empty((len(table), table.num_columns))
    for number, column in enumerate(table.columns):
        rows[:, number] = column.to_numpy()
    return rows


def plain_idx(path, rank, size):
    file = Path(path) / "train-images-idx3-ubyte"
    start, stop = rows_of((file.stat().st_size - 16) // 784, rank, size)
    return np.fromfile(file, np.uint8, (stop - start) * 784, offset=16 + start * 784).reshape(-1, 28, 28)


PLAIN = {"NETCDF": plain_netcdf, "HDF5": plain_hdf5, "CSV": plain_csv, "MNIST": plain_idx}
OPTIONS = {"NETCDF": {"data": "x"}, "HDF5": {"data": "x"}, "CSV": {}, "MNIST": {}}


def status(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def io():
    """Bytes read so far: asked of the kernel, and come from the disk."""
    with open("/proc/self/io") as file:
        found = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return {"read": found["rchar"], "disk": found["read_bytes"]}


def drop(path):
    files = Path(path).iterdir() if Path(path).is_dir() else [path]
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def worker(which, name, path, rank, size, cold):
    """One rank of one measurement; prints what it took."""
    warm_up(name)
    if cold:
        drop(path)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(taken(lambda: read(which, name, path, rank, size))))


def together(name, path, cold):
    """The same under mpirun, where ranks meet; rank 0 prints what each took."""
    from matex_tf.runtime import objects
    from matex_tf.world import world

    warm_up(name)
    if cold:
        drop(path)
    objects.barrier("the measurement")
    mine = taken(lambda: read("reader", name, path))
    for line in objects.allgather(json.dumps(mine), "what it took"):
        if world.get_world().rank == 0:
            print(line, flush=True)


def read(which, name, path, rank=None, size=None):
    from matex_tf.readers import DataSet

    if which == "plain":
        return PLAIN[name](path, rank, size)
    return DataSet(name, path, rank=rank, size=size, missing="nan", **OPTIONS[name]).training_data


def warm_up(name):
    from matex_tf.readers import DataSet

    # What is imported and loaded at first use is not to be measured.
    for module in ("h5py", "netCDF4", "pyarrow.compute"):
        importlib.import_module(module)
    if name == "CSV":
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as small:
            small.write("a,b\n" + "1,2\n" * 1000)
            small.flush()
            DataSet(name, small.name, rank=0, size=1).training_data.sum()
            plain_csv(small.name, 0, 1)


def taken(action):
    """The time, memory and bytes of `action()`, which gives this rank's rows."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of memory begins anew
    memory, before, begin, computed = status("VmRSS"), io(), time.perf_counter(), time.process_time()
    rows = action()
    seconds, after = time.perf_counter() - begin, io()
    found = {
        "seconds": seconds,
        "cpu": time.process_time() - computed,
        "share": rows.nbytes,
        "peak": status("VmHWM") - memory,
    }
    return found | {key: after[key] - before[key] for key in after}


def measure(which, name, path, size, cold, processes=None):
    """What each of `size` processes took, all reading at once; or the first few of them."""
    if (which, name) == ("reader", "CSV") and size > 1:
        command = [
            sys.executable,
            "-m",
            "matex_tf.launch.cli",
            "run",
            "-n",
            size,
            __file__,
            "--together",
            name,
            path,
            int(cold),
        ]
        output = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True).stdout
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    command = [sys.executable, __file__, "--worker", which, name, str(path)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(int(cold))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(processes or size)
    ]
    for process in ranks:
        process.stdout.readline()
    for process in ranks:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0]) for process in ranks]


def in_turns(name, path, size, number):
    """Reader and plain library in turns in one process, where both find the same memory and the same load."""
    times = {"reader": [], "plain": []}
    for _ in range(number + 1):
        for which, taken_by in times.items():
            begin, computed = time.perf_counter(), time.process_time()
            rows = read(which, name, path, 0, size)
            taken_by.append((time.perf_counter() - begin, time.process_time() - computed))
            del rows
    for what, which in (("seconds", 0), ("processor time", 1)):
        reader, plain = ([pair[which] for pair in times[whose][1:]] for whose in ("reader", "plain"))
        ratio = statistics.median(a / b for a, b in zip(reader, plain))
        print(
            f"{name}, rank 0 of {size}, warm, {what}: least {min(reader):.3f} and {min(plain):.3f}, ratio of these "
            f"{min(reader) / min(plain):.2f}, median ratio {ratio:.2f}",
            flush=True,
        )


def stream(name, path, limit):
    """Streams the file, with a limit of memory in bytes, beyond what TensorFlow takes; prints the peak."""
    import tensorflow as tf

    from matex_tf.readers import DataSet

    warm_up(name)
    for _ in tf.data.Dataset.range(4).batch(2).prefetch(2):
        pass
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    memory = status("VmRSS")
    # Rows of text would be kept where so much memory is free.
    options = {"memory": limit} if name == "CSV" else OPTIONS[name]
    batches = DataSet(name, path, **options).as_dataset(16 if name == "NETCDF" else 4096, shuffle=True, seed=1)
    rows = sum(len(batch) for batch in batches)
    print(json.dumps({"rows": rows, "peak": status("VmHWM") - memory, "limit": limit}))


def exchange(megabytes):
    """Under mpirun: seconds to exchange so many megabytes a rank, as reshuffle="epoch" does between epochs."""
    from matex_tf.runtime import objects
    from matex_tf.sharding.exchange import exchange_rows
    from matex_tf.world import world

    me = world.get_world()
    for row in (784, 256 * 256 * 4):
        rows = np.zeros((megabytes * 2**20 // row, row), np.uint8)
        times, begin = [], time.perf_counter()
        rows.copy()
        copying = time.perf_counter() - begin
        for epoch in range(4):
            objects.barrier("the next exchange")
            begin = time.perf_counter()
            exchange_rows([rows], 0, epoch)
            times.append(time.perf_counter() - begin)
        if me.rank == 0:
            print(
                f"exchange among {me.size} ranks, {megabytes} MB each in rows of {row} bytes: "
                f"{statistics.median(times):.2f} s (a copy in memory: {copying:.2f} s)"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--in-turns", type=int, default=0, help="so many turns in one process, and nothing else")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "matex-readers")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    paths = make(options.folder, options.megabytes)
    if options.in_turns:
        for name in options.formats:
            warm_up(name)
            for size in options.ranks if name != "CSV" else [1]:
                in_turns(name, paths[name], size, options.in_turns)
        return
    print("format   ranks  cache  reader s   plain s  reader/plain  cpu/cpu  read/share  disk/share  peak/share")
    for name in options.formats:
        for size in options.ranks:
            for cold in (False, True):
                measure("reader", name, paths[name], size, False)
                one_for_all = name == "CSV"
                seconds, cpu = {"reader": [], "plain": []}, []
                for _ in range(options.turns):
                    found = measure("reader", name, paths[name], size, cold)
                    seconds["reader"].append(max(rank["seconds"] for rank in found))
                    plain = measure("plain", name, paths[name], size, cold, 1 if one_for_all else size)
                    cpu.append(sum(rank["cpu"] for rank in found) / sum(rank["cpu"] for rank in plain))
                    slowest = max(rank["seconds"] for rank in plain)
                    seconds["plain"].append(slowest / size if one_for_all else slowest)
                reader, plain = (statistics.median(seconds[which]) for which in ("reader", "plain"))
                ratio = statistics.median(a / b for a, b in zip(seconds["reader"], seconds["plain"]))
                share = max(rank["share"] for rank in found)
                bytes_of = paths[name].stat().st_size / size if one_for_all else share
                read, disk = (max(rank[key] for rank in found) / bytes_of for key in ("read", "disk"))
                peak = max(rank["peak"] for rank in found) / share
                print(
                    f"{name:8} {size:5}  {'cold' if cold else 'warm':5} {reader:9.3f} {plain:9.3f} {ratio:13.2f} "
                    f"{statistics.median(cpu):8.2f} {read:11.2f} {disk:11.2f} {peak:11.2f}",
                    flush=True,
                )
    for name in {"NETCDF", "CSV"} & set(options.formats):
        command = [sys.executable, __file__, "--stream", name, str(paths[name]), str(options.megabytes * 2**20 // 4)]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        print(
            f"as_dataset of {options.megabytes} MB of {name}: {found['rows']} rows, peak {found['peak'] / 2**20:.0f} "
            f"MB; a quarter of the file is {found['limit'] / 2**20:.0f} MB"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        which, name, path, rank, size, cold = sys.argv[2:]
        worker(which, name, path, int(rank), int(size), cold == "1")
    elif sys.argv[1:2] == ["--together"]:
        together(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    elif sys.argv[1:2] == ["--exchange"]:
        exchange(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--stream"]:
        stream(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
