"""Searches whose trials are small Pythons without TensorFlow: `matex run` is played by one that runs the script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from matex_tf.tune import setup

RUN = """\
import os, sys
script = next(place for place, word in enumerate(sys.argv) if word.endswith("train.py"))
os.execv(sys.executable, [sys.executable, *sys.argv[script:]])
"""
SCRIPT = """\
import json, os, sys, time
told = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if "=" in word)
x = float(told["x"])
time.sleep(float(os.environ.get("SLEEP", 0)))
with open(os.environ["MATEX_TRIAL"], "a") as file:
    file.write(json.dumps({"task": {"rows": 100, "columns": 8, "classes": 2, "parameters": 50, "loss": "mse"}}) + "\\n")
    for epoch in (1, 2):
        file.write(json.dumps({"epoch": epoch, "of": 2, "logs": {"val_loss": (x - 0.3) ** 2 / epoch}}) + "\\n")
open("made", "a").write("x")
print("told", sys.argv[1:])
"""
# It keeps its state after each epoch, and pauses at rungs.
PLAYS = """
import json, os, sys, time
x, epochs = float(sys.argv[1].split("=")[1]), int(os.environ.get("EPOCHS", 9))
state, pause = os.environ["MATEX_STATE"], int(os.environ["MATEX_PAUSE"])
os.makedirs(state, exist_ok=True)
kept = os.path.join(state, "state-1")
for epoch in range(int(open(kept).read()) + 1 if os.path.exists(kept) else 1, epochs + 1):
    time.sleep(float(os.environ.get("SLEEP", 0)))
    value = "nan" if x > 0.9 and epoch == 3 else abs(x - 0.3) + 1 / epoch
    with open(os.environ["MATEX_TRIAL"], "a") as file:
        file.write(json.dumps({"epoch": epoch, "of": epochs, "call": 0, "logs": {"val_loss": float(value)}}) + "\\n")
    open("made", "a").write(f"{epoch} ")
    open(state + "/new", "w").write(str(epoch))
    os.replace(state + "/new", kept)
    if epoch == pause:
        sys.exit(75)
os.remove(kept)
os.rmdir(state)
"""
SPACE = "search:\n  --x: {float: [0, 1]}\n"


def prepare(folder: Path, script: str = SCRIPT, space: str = SPACE) -> None:
    """The files of a search in `folder`."""
    (folder / "run.py").write_text(RUN)
    (folder / "train.py").write_text(script)
    (folder / "space.yaml").write_text(space)


def command(folder: Path) -> str:
    """What stands for `matex`."""
    return shlex.join([sys.executable, str(folder / "run.py")])


def main() -> int:
    """`matex tune` with the words of the command line, in the current folder."""
    from matex_tf.deploy import following
    from matex_tf.launch import cli

    following.ASK_EACH, following.LOOK_EACH = 0.1, 0.02
    setup.find_own_command = lambda: command(Path.cwd())
    return cli.main(["tune", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
