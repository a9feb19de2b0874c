"""Where a rank keeps its own files, how many bytes of them there may be, and that what is known of places holds."""

import os
import shutil

import pytest

import launch
from matex_tf import settings
from matex_tf.files import private_folder
from matex_tf.world import world

FULL = """
import os, sys, time
import numpy as np
import matex_tf

rank = sys.modules["matex_tf.world.world"].get_world().rank
np.save("small.npy", np.zeros(10))
if rank == 1:
    with open("large.bin", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.1)
matex_tf.barrier()
"""


def test_more_bytes_than_there_may_be_end_the_job(tmp_path):
    env = {"MATEX_FILES_BYTES": str(5 << 20), "MATEX_FILES_DIR": str(tmp_path / "own")}
    result = launch.run(2, FULL, cwd=tmp_path, env=env)
    assert result.returncode == 74, result.output
    told = [line for line in result.stderr.splitlines() if "MATEX_FILES_BYTES" in line]
    assert len(told) == 1 and "rank 1 (" in told[0], result.stderr
    assert f"The largest is {tmp_path}/large.bin (" in told[0], told
    assert f"in a private folder, {tmp_path}/own/matex_tf-files-" in told[0], told
    assert (tmp_path / "small.npy").is_file() and not (tmp_path / "large.bin").exists()


@pytest.mark.parametrize(
    "me, folders",
    [
        (world.World(rank=2, size=7, local_size=3, nodes=[0, 0, 0, 3, 3, 3, 6]), 2),
        (world.World(rank=3, size=7, local_size=3, nodes=[0, 0, 0, 3, 3, 3, 6]), 3),
        (world.World(rank=6, size=7, local_size=1, nodes=[0, 0, 0, 3, 3, 3, 6]), 1),
        (world.World(rank=0, size=64, local_size=2, nodes=[0] * 64, is_phantom=True), 2),
    ],
)
def test_private_folders_of_a_host_share_half_of_the_free_space(monkeypatch, me, folders):
    monkeypatch.setattr(private_folder.world, "get_world", lambda: me)
    monkeypatch.setattr(private_folder.settings, "get_settings", lambda: settings.Settings({}))
    monkeypatch.setattr(private_folder.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 40, 60))
    assert private_folder.Limit("/disk/own").max_bytes == 30 // folders


def test_files_do_not_lie_in_memory(monkeypatch, tmp_path):
    assert private_folder.is_in_memory("/dev/shm") and not private_folder.is_in_memory(str(tmp_path))
    monkeypatch.setattr(private_folder.tempfile, "gettempdir", lambda: "/dev/shm")
    monkeypatch.setattr(settings, "_current", settings.Settings({}))
    found = private_folder.choose_parent()
    assert found != "/dev/shm" and not private_folder.is_in_memory(found)
    monkeypatch.setattr(settings, "_current", settings.Settings({"MATEX_FILES_DIR": str(tmp_path / "mine")}))
    assert private_folder.choose_parent() == str(tmp_path / "mine") and (tmp_path / "mine").is_dir()


KNOWN = """
import os, shutil, sys, threading
import matex_tf

rank = sys.modules["matex_tf.world.world"].get_world().rank

def there(*names):
    return [os.path.exists(name) for name in names]

open("first", "w").close()
assert there("first", f"second-{rank}", "folder/a") == [True, False, False]
child = os.fork()
if child == 0:  # it is no rank, and sees what another rank has made
    with open(f"second-{rank}", "w") as file:
        file.write("of a child")
    os._exit(0)
os.waitpid(child, 0)
assert there("first", f"second-{rank}") == [True, True], "what a forked process has made"
with open(f"second-{rank}") as file:
    assert file.read() == "of a child"
os.mkdir("folder")
os.chdir("folder")
assert there("first", "../first") == [False, True] and os.listdir() == []
os.symlink("../first", "link")
with open("link", "w") as file:
    file.write("by its name")
assert open("../first").read() == "by its name" and os.path.islink("link")
os.chdir("..")
shutil.rmtree("folder")
os.mkdir("folder")
assert os.listdir("folder") == [] and there("folder/link") == [False]
for number in range(50):
    assert not os.path.exists(f"folder/{number}")
    open(f"folder/{number}", "w").close()
    assert os.path.exists(f"folder/{number}") and os.stat(f"folder/{number}").st_size == 0
assert len(os.listdir("folder")) == 50
failed = []

def ask(number):
    for step in range(200):
        name = f"folder/{number}-{step}"
        if os.path.exists(name):
            failed.append(name)
        open(name, "w").close()
        if not os.path.exists(name):
            failed.append(name)

threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
mine = f"run-{rank}"
os.mkdir(mine)
with open(f"{mine}/part", "w") as file:
    file.write(mine)
if rank == 0:
    os.symlink(mine, "latest")
matex_tf.barrier()
if rank == 1:  # whose folder has another name, for example by the time, than that of rank 0
    os.remove("latest")
    os.symlink(mine, "latest")
matex_tf.barrier()  # rank 0 removes its link below
with open("latest/part") as file:
    assert [file.read(), os.readlink("latest"), os.listdir("latest")] == [mine, mine, ["part"]]
with open("latest/more", "w"):
    assert there(f"{mine}/more", f"run-{1 - rank}/more") == [True, False]
os.remove("latest")
assert not os.path.exists("latest/part") and os.path.exists(f"{mine}/part")
matex_tf.barrier()
"""

LINKS = """
import os, sys
import matex_tf
from matex_tf.runtime import real_files

first, second = int(sys.argv[1]), 1 - int(sys.argv[1])
world = sys.modules["matex_tf.world.world"]

def wait_for(rank):  # without a collective, after which the ranks would be at another place of the script
    with real_files.use_real_files():
        world.get_communicator("control").barrier()

if world.get_world().rank == second:
    wait_for(first)  # which removes the links below
with open("link/part") as file:
    assert file.read() == "old"
os.remove("link")
assert not os.path.exists("link/part") and os.path.exists("old/part")
with open("other/link/part") as file:
    assert file.read() == "old"
os.symlink("new", "link")
with open("link/part") as file:
    assert file.read() == "new"
os.remove("other/link")
os.symlink("../new", "other/link")
with open("other/link/part") as file:
    assert file.read() == "new"
with open("third/part") as file:
    assert file.read() == "old"
os.symlink("new", "next")
os.replace("next", "third")
assert os.readlink("third") == "new" and not os.path.lexists("next") and os.listdir("old") == ["part"]
with open("third/part") as file:
    assert file.read() == "new"
os.rename("third", "moved")
assert os.readlink("moved") == "new" and not os.path.lexists("third") and os.listdir("moved") == ["part"]
if world.get_world().rank == first:
    wait_for(second)
"""


@pytest.mark.parametrize("first", [0, 1])
def test_links_of_before_the_run_are_removed_and_replaced(first, tmp_path):
    """Each rank sees its own links, whichever rank removes and replaces them first."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text(name)
    (tmp_path / "other").mkdir()
    for name in ("link", "third"):
        (tmp_path / name).symlink_to("old")
    (tmp_path / "other" / "link").symlink_to("../old")
    launch.run(2, LINKS, first, cwd=tmp_path).check()
    found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_symlink()}
    targets = {name: os.readlink(path) for name, path in found.items()}
    assert targets == {"link": "new", "other/link": "../new", "moved": "new"}
