"""What compressed gradients do to training: the loss of each epoch on handwritten digits, for each `MATEX_COMPRESSION`.

    python benchmarks/compression.py [--ranks 2] [--epochs 5] [--rows N] [--batch-size 64]

Trains examples/mnist_keras.py as it is, alone and on the ranks; the columns are training losses by epoch, the loss and
accuracy on digits that were not trained on, and the largest difference of a training loss from that alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from matex_tf.launch import command_line, run_options

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/mnist_keras.py"
KINDS = ("none", "bf16", "fp16", "topk:0.1", "topk:0.01")
EPOCH = re.compile(r"^epoch \d+\s+loss (\S+)", re.MULTILINE)
TEST = re.compile(r"^test\s+loss (\S+)\s+accuracy (\S+)", re.MULTILINE)


def trained(command: list[str], environment: dict[str, str]) -> tuple[list[float], float, float]:
    """The training losses that the script prints, and its loss and accuracy at the end."""
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    loss, accuracy = TEST.findall(answer.stdout)[0]
    return [float(one) for one in EPOCH.findall(answer.stdout)], float(loss), float(accuracy)


def line(name: str, found: tuple[list[float], float, float], alone: list[float]) -> str:
    losses, loss, accuracy = found
    apart = max(abs(a - b) / b for a, b in zip(losses, alone))
    figures = "".join(f"{one:9.4f}" for one in losses)
    return f"{name:14}{figures}{loss:9.4f}{accuracy:10.3f}{apart:12.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rows", type=int, help="train on the first so many digits only")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    chosen = parser.parse_args()
    words = [SCRIPT, "--epochs", str(chosen.epochs), "--batch-size", str(chosen.batch_size)]
    words += ["--rows", str(chosen.rows)] if chosen.rows else []
    epochs = "".join(f"{f'epoch {number + 1}':>9}" for number in range(chosen.epochs))
    print(f"{'':14}{epochs}{'test':>9}{'accuracy':>10}{'from alone':>12}")
    alone = trained([sys.executable, *words], {})
    print(line("alone", alone, alone[0]), flush=True)
    command = command_line.make_command_line(run_options.Run(chosen.ranks, words))
    for kind in chosen.kinds:
        print(line(kind, trained(command, {"MATEX_COMPRESSION": kind}), alone[0]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
