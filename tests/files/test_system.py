"""What lies in /proc and the like is no file of the script's: on rank 0 it is neither read nor noted before a write."""

import launch
from matex_tf.files import journal_reader

SCRIPT = """
import os
import matex_tf
matex_tf.rank()
with open("/proc/self/comm", "w") as file:
    file.write("named")
with open("/proc/self/clear_refs", "w") as file:  # cannot be read
    file.write("5")
with open("/dev/null", "w") as file:
    file.write("nothing")
print("done")
"""


def test_paths_of_the_system():
    for path in ("/proc/self/clear_refs", "/dev/null", "/sys"):
        assert journal_reader.is_system(path)
    for path in ("/process/x", "/home/dev/null", "/tmp/proc"):
        assert not journal_reader.is_system(path)


def test_they_can_be_written_to_on_every_rank():
    assert "done" in launch.run(2, SCRIPT).check().stdout
