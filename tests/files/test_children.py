"""Processes that each rank starts for itself find what it has made, wherever they are told of it; and how ranks end."""

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
assert not os.path.exists("last")
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
