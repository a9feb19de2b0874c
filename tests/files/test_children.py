"""Processes that each rank starts for itself find what it has made, wherever they are told of it; and how ranks end."""

import pytest

import launch

CHILDREN = """
import importlib.util, os, shutil, subprocess, sys, tempfile, time
import matex_tf

# As libraries have one: a copy of tempfile, whose names are each rank's own and whose files are in its private layer.
spec = importlib.util.find_spec("tempfile")
copy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(copy)
own = copy.mkdtemp()

def said(words, **options):
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options) as child:
        return child.communicate()[0]

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

write(os.path.join(own, "in.txt"), "graph")
assert said(["cat", "in.txt"], cwd=own) == said("cat in.txt", cwd=os.fsencode(own), shell=True) == "graph"
assert said(["cat", os.path.join(own, "in.txt")]) == "graph"
said(["sh", "-c", "cat in.txt > by_child.txt"], cwd=own)
with open(os.path.join(own, "by_child.txt")) as file:
    assert file.read() == "graph"
said(["cp", os.path.join(own, "in.txt"), os.path.join(own, "copied.txt")])
with open(os.path.join(own, "copied.txt")) as file:
    assert file.read() == "graph"

os.makedirs("made/deep")
write("made/deep/a.txt", "deep")
write("before/new.txt", "new")
assert said(["cat", "a.txt"], cwd="made/deep") == said(["cat", "made/deep/a.txt"]) == "deep"
assert said(["cat", "deep/a.txt"], cwd="made") == "deep"
assert said(["cat", "inner.txt", os.path.abspath("before/new.txt")], cwd="before") == "innernew", "what is below stays"
write("made/run.sh", "#!/bin/sh\\necho run $1\\n")
os.chmod("made/run.sh", 0o755)
assert said("cat made/deep/a.txt 2>&1 | cat > made/out.txt; cat < made/out.txt", shell=True) == "deep"
assert said("echo made/deep/*; cat 'before/inner.txt'", shell=True).endswith("inner"), "what is below stays"
assert os.system("test -f made/deep/a.txt && cp made/deep/a.txt made/by_system.txt") == 0
with open("made/by_system.txt") as file:
    assert file.read() == "deep"
assert said(["./made/run.sh", "made"]) .startswith("run ")
assert said(["printf", "%s", "inner.txt"], cwd="made/deep") == "inner.txt", "what is no path stays as it is"
write("printf", "no program")
assert said(["printf", "%s", "word"]) == "word", "a program is looked for on PATH"
start = os.getcwd()
os.chdir("made/deep")
assert said(["cat", "a.txt"]) == said("cat a.txt", shell=True) == "deep"
os.chdir(start)
try:
    said(["cat"], cwd="made/nowhere")
    raise AssertionError("no such folder")
except FileNotFoundError:
    pass
shutil.rmtree(own)

# Rank 0 comes to the end of the script long before the others, to whom what it makes there is new.
if matex_tf.rank() > 0:
    time.sleep(2)
else:
    os.mkdir("of_rank_0")
assert not os.path.exists("last")
os.chdir("of_rank_0")  # a script that asks for its rank may wait for what another rank makes
os.chdir(start)
try:
    os.chdir("before/inner.txt/no_folder")
    raise AssertionError("no such folder")
except NotADirectoryError as error:
    assert error.filename == "before/inner.txt/no_folder"
os.makedirs("last/of/all")
"""


def prepared(folder):
    (folder / "before").mkdir(parents=True)
    (folder / "before" / "inner.txt").write_text("inner")
    return folder


def test_children_of_each_rank_find_its_files(tmp_path):
    launch.run_alone(CHILDREN, cwd=prepared(tmp_path / "alone")).check()
    launch.run(2, CHILDREN, cwd=prepared(tmp_path / "ranks"), module=False).check()
    assert (tmp_path / "ranks" / "last" / "of" / "all").is_dir()
    assert (tmp_path / "ranks" / "made" / "deep" / "a.txt").read_text() == "deep"


WORKERS = """
import multiprocessing, os, shutil, sqlite3, sys, time
import h5py
import matex_tf
from matex_tf.files import overlay
from matex_tf.runtime import objects
from matex_tf.world import world


def work(number):
    with open("made/log.txt", "a") as file:
        file.write(f"{number}\\n")
    with open("made/settings.txt") as file, h5py.File(f"made/part-{number}.h5", "w") as part:
        part["of"] = int(file.read()) * number
    with sqlite3.connect("made/base.db") as base:
        base.execute("insert into parts values (?)", (number,))
    if number == 2:
        os.remove("made/part-1.h5")
    return sorted(os.listdir("made"))


if __name__ == "__main__":
    if world.get_world().rank == int(sys.argv[2]):
        time.sleep(1)
    if sys.argv[1] == "fork":  # before this process itself has written a file
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        view = overlay.get_view()
        assert view is None or not view.used, "a child that changes no file makes no later call slow"
        if (child := os.fork()) == 0:
            os.mkdir("by_child")
            os.symlink("by_child", "link")
            open("link/x", "w").close()
            os._exit(0)
        os.waitpid(child, 0)
        assert os.access("link/x", os.R_OK) and os.listdir(b"by_child") == [b"x"]
    os.mkdir("made")
    with open("made/settings.txt", "w") as file:
        file.write("5")
    with sqlite3.connect("made/base.db") as base:
        base.execute("create table parts (number)")
    seen = [os.path.exists("made/log.txt"), os.path.exists("made/part-2.h5")]
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        seen += pool.map(work, [1, 2])
    with open("made/log.txt") as file, h5py.File("made/part-2.h5") as part, sqlite3.connect("made/base.db") as base:
        seen += [file.read(), int(part["of"][()]), base.execute("select * from parts").fetchall()]
    seen += [os.path.exists("made/part-1.h5"), sorted(os.listdir("made"))]
    shutil.rmtree("again")
    os.mkdir("again")
    os.chdir("again")
    everyone = objects.allgather(seen, "what each rank has seen")
    assert os.path.basename(os.getcwd()) == "again", "another rank has removed and made it later"
    for each in everyone:
        print(each)
"""


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_each_rank_have_its_files(tmp_path, method, late):
    """Also where rank 0, or the other rank, comes to everything a second later."""
    (tmp_path / "again").mkdir()
    ended = launch.run(2, WORKERS, method, late, module=False, cold=True, cwd=tmp_path).check()
    names = ["base.db", "log.txt", "part-1.h5", "settings.txt"]
    left = ["base.db", "log.txt", "part-2.h5", "settings.txt"]
    expected = [False, False, names, left, "1\n2\n", 10, [(1,), (2,)], False, left]
    assert ended.stdout.splitlines() == [str(expected)] * 2
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == left
    assert (tmp_path / "made" / "log.txt").read_text() == "1\n2\n"
