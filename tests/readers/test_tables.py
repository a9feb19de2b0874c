"""CSV under mpirun: what ranks parse in opening comes to the ranks whose it is, and each reads its part of the text."""

import csv
import gzip
import json

import numpy as np
import pytest

import launch

ROWS = 3001

SCRIPT = """
import json, os, sys
import numpy as np
import matex_tf
from matex_tf.runtime import objects
from matex_tf.steps import own_data
from matex_tf.readers import DataSet, ReaderError

folder, large = sys.argv[1:]
rank, size = matex_tf.rank(), matex_tf.size()
said = {}

def read_bytes():
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))

def same(a, b):
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)

def join(stream):
    return [np.concatenate(found) for found in zip(*[(x.numpy(), y.numpy()) for x, y in stream])]

def list_rows(x, y):
    return sorted(one.tobytes() + other.tobytes() for one, other in zip(np.asarray(x), np.asarray(y)))

# What opening kept is what each rank reads by itself, by the places of records.
options = {"labels": ["kind", "y"], "missing": "nan"}
for path in ("one.csv", "part-*.csv", "part-*.csv.gz"):
    for name, more in {
        "block": {}, "cyclic": {"distribution": "cyclic"}, "batch": {"distribution": "batch", "batch_size": 75},
        "split": {"validation_fraction": 0.2, "test_fraction": 0.1},
        "spread": {"validation_fraction": 0.2, "split": "spread", "distribution": "cyclic"},
        "only counted": {"memory": 0, "validation_fraction": 0.2},
    }.items():
        data = DataSet("CSV", f"{folder}/{path}", **options, **more)
        alone = DataSet("CSV", f"{folder}/{path}", rank=rank, size=size, **options, **more)
        parts = ["training", *(part for part in ("validation", "testing") if alone._source.count_samples(part))]
        fine = [data._rows.were_read_in_opening == (name != "only counted"), data.categories == alone.categories]
        for part in parts:
            for field in ("data", "labels"):
                fine.append(same(getattr(data, f"{part}_{field}"), getattr(alone, f"{part}_{field}")))
        # A rank's stream has its rows. Eager code sees every row once, with its labels.
        stream = data.as_dataset(75, part=parts[-1])
        with own_data.compute_alone():
            mine = join(stream)
        fine += [same(found, np.asarray(getattr(alone, f"{parts[-1]}_{field}")))
                 for found, field in zip(mine, ("data", "labels"))]
        whole = DataSet("CSV", f"{folder}/{path}", rank=0, size=1, **options, **more)
        fine.append(list_rows(*join(stream)) == list_rows(*(getattr(whole, f"{parts[-1]}_{field}")
                                                            for field in ("data", "labels"))))
        said[f"{path} {name}"] = fine
    standard = DataSet("CSV", f"{folder}/{path}", columns=["x", "y"], missing="nan", normalize="standard",
                       validation_fraction=0.3, distribution="cyclic")
    whole = DataSet("CSV", f"{folder}/{path}", columns=["x", "y"], missing="nan", validation_fraction=0.3,
                    rank=0, size=1)
    mean, deviation = np.nanmean(whole.training_data, axis=0), np.nanstd(whole.training_data, axis=0)
    for part in ("training", "validation"):
        found, rows = getattr(standard, f"{part}_data"), getattr(whole, f"{part}_data")
        said[f"{path} {part} scaled"] = [np.allclose(found, ((rows - mean) / deviation)[rank::size], equal_nan=True)]

# Fewer rows than ranks: a rank without rows sees the batch of all.
few_rows = DataSet("CSV", f"{folder}/few.csv", labels="y", rank=0, size=1).training_data.tolist()
few = DataSet("CSV", f"{folder}/few.csv", labels="y")
said["few"] = [few.training_data.shape[0] == (1 if rank < 2 else 0), few.next_train_batch(2)[0].tolist() == few_rows]

# Each rank reads its part of the text, the head and a chunk.
before = read_bytes()
data = DataSet("CSV", large)
data.training_data
share = os.path.getsize(large) / size
said["bytes"] = [read_bytes() - before < share + (1 << 20) + (1 << 19)]

# So it does of a text that is spelled otherwise, with comments.
options = {"decimal": ",", "thousands": ".", "comment": "#", "skiprows": 1, "encoding": "latin-1", "na_values": ["?"],
           "missing": "nan", "labels": "kind"}
before = read_bytes()
data = DataSet("CSV", f"{folder}/spelled.csv", **options)
data.training_data
read = read_bytes() - before
share = os.path.getsize(f"{folder}/spelled.csv") / size
alone = DataSet("CSV", f"{folder}/spelled.csv", rank=rank, size=size, **options)
said["spelled"] = [read < share + (1 << 20) + (1 << 19), data.categories == {"kind": ["a\\nb", "é"]},
                   same(data.training_data, alone.training_data), same(data.training_labels, alone.training_labels),
                   data.global_size == 60_000, bool(np.isnan(data.training_data).any())]

# What is wrong in one rank's part is raised on all.
errors = []
for name in ("text", "missing", "quote", "late"):
    try:
        DataSet("CSV", f"{folder}/{name}.csv", labels="y").training_data
        errors.append("nothing")
    except ReaderError as error:
        errors.append(str(error))
print("SAID" + json.dumps([objects.allgather(said, "said"), objects.allgather(errors, "errors")]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(0)
    texts = ["a", "b\nb", 'c "quoted", and\r\nmore', "é" * 40, ""]
    header = ["x", "kind", "n", "y"]
    rows = [[f"{random.normal():.6g}" if i % 50 else "NA", texts[i * i % 5], i, i % 7] for i in range(ROWS)]

    def write(name, rows):
        with open(folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)
        return folder / name

    write("one.csv", rows)
    for number, (start, stop) in enumerate(((0, 10), (10, 2000), (2000, 2000), (2000, ROWS))):
        path = write(f"part-{number}.csv", rows[start:stop])
        (folder / f"part-{number}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    write("few.csv", [[1, "a", 1, 2], [2, "a", 1, 2]])
    # Row 5 of these stands on line 7.
    for name, value in (("text", "none"), ("missing", "")):
        wrong = [[1, "a", 2, 3] for _ in range(3000)]
        wrong[2900][3] = value
        write(f"{name}.csv", wrong)
    (folder / "quote.csv").write_text("x,kind,n,y\n" + "1,a,2,3\n" * 200_000 + '1,"a,2,3\n')
    lines = ["measured in 2020; by us", "x;y;kind"]
    for number in range(60_000):
        lines += [f'# {number}; "as' if number % 9 == 0 else ""]
        value = f"{number:,},5".replace(",", ".", 1) if number >= 1000 else f"{number},5"
        text = "a\nb" if number % 101 == 0 else "é"
        lines += [f'{value};{"?" if number % 50 == 3 else number};"{text}"']
    (folder / "spelled.csv").write_text("\n".join(lines), encoding="latin-1")
    (folder / "late.csv").write_text("x,y\n" + "low,1\n" * 180_000 + "7%,1\n" * 200_000)
    np.savetxt(
        folder / "large.csv", random.normal(size=(150_000, 8)), "%.6f", ",", header=",".join("abcdefgh"), comments=""
    )
    return folder


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.more)])
def test_every_rank_has_its_rows_and_reads_its_part(folder, ranks):
    output = launch.run(ranks, SCRIPT, folder, folder / "large.csv", timeout=200).check().stdout
    (line,) = [line for line in output.splitlines() if line.startswith("SAID")]
    said, errors = json.loads(line[4:])
    assert len(said) == ranks
    for rank, of_rank in enumerate(said):
        for name, fine in of_rank.items():
            assert (ranks == 1 and name == "few") or all(fine), (rank, name, fine)
    for of_rank in errors:
        assert "text.csv, line 2902, column 'y': expected a number (double), found 'none'" in of_rank[0]
        assert "missing.csv, line 2902, column 'y': expected a number, found a missing value" in of_rank[1]
        assert "quote.csv: expected every quote to be closed" in of_rank[2]
        assert "late.csv, line 180002, column 'x': expected text" in of_rank[3]
