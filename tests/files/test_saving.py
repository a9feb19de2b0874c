"""What is saved under ranks is what is saved alone: written once, there for every rank, and without a trace of us."""

from pathlib import Path

import pytest

import launch

CASE = Path(__file__).with_name("saving_case.py")
LOAD = """
import sys
import keras
assert "matex_tf" not in sys.modules
keras.models.load_model(sys.argv[1] + "/out/model.keras").summary()
"""


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".tfevents." not in path.name)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, legacy", [(2, "0"), *(pytest.param(*case, marks=pytest.mark.more) for case in ((3, "0"), (2, "1")))]
)
def test_what_is_saved_under_ranks_is_what_is_saved_alone(tmp_path, ranks, legacy):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASE, alone, env=keras).check()
    launch.run(ranks, CASE, together, env=keras, timeout=200).check()
    assert files(together) == files(alone)
    if legacy == "0":
        launch.run_alone(LOAD, together).check()


OWN_FOLDERS = """
import os, shutil
import tensorflow as tf
import matex_tf
from matex_tf.files import delivery

folder = f"run-{os.getpid()}"  # each rank has another name, as with the time of its start
variable = tf.Variable(3.0)
checkpoint = tf.train.Checkpoint(x=variable)
manager = tf.train.CheckpointManager(checkpoint, f"{folder}/kept", max_to_keep=1)
for number in range(2):
    variable.assign_add(1.0)
    path = manager.save()
    assert path.startswith(folder) and manager.latest_checkpoint == path
variable.assign(0.0)
checkpoint.restore(manager.latest_checkpoint).assert_consumed()
assert variable.numpy() == 5.0

os.symlink(folder, "latest")
assert os.path.exists(checkpoint.write("latest/last") + ".index")
assert "last.index" in os.listdir(folder)

shutil.rmtree("again")  # made again, the folder has files of the rank, and of rank 0
os.mkdir("again")
open("again/own.txt", "w").close()
checkpoint.write("again/saved")
os.chdir("again")
checkpoint.read("saved").assert_consumed()
os.chdir("..")
matex_tf.barrier()  # a rank that stands in a folder of the disk loses it if rank 0, further on, removes it
shutil.rmtree("again")

os.mkdir("again")  # the working folder is the rank's own, until a save for all
open("again/own.txt", "w").close()
os.chdir("again")
delivery._send_part = None  # every rank sees rank 0's files, so that none gets a copy, which would replace them
checkpoint.write("saved")
os.chdir("..")
matex_tf.barrier()
shutil.rmtree("again")
"""


def test_each_rank_finds_what_it_saves_in_a_folder_of_another_name(tmp_path):
    (tmp_path / "again").mkdir()
    launch.run(2, OWN_FOLDERS, module=False, cwd=tmp_path).check()
    (folder,) = (path for path in tmp_path.iterdir() if not path.is_symlink())
    kept = ["kept", "kept/checkpoint", "kept/ckpt-2.data-00000-of-00001", "kept/ckpt-2.index"]
    assert files(folder) == [*kept, "last.data-00000-of-00001", "last.index"]
