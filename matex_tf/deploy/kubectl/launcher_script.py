"""The shell script that a launcher's container runs."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence

from matex_tf.deploy import run_folder

OVER = "matex: the run is over"
"""The termination message of a launcher whose exit code is the run's: no further launcher should start."""


def format_script(command: Sequence[str], setup: Sequence[str], folder: str, note: str) -> str:
    """The script that runs `command` after the `setup` lines.

    `folder` is the folder of the run, "" without a volume; `note` identifies the job there.
    """
    folder_word = shlex.quote(folder)
    note_lines = _NOTE.format(at=folder_word, note=shlex.quote(note), file=run_folder.NOTE, code=os.EX_CANTCREAT)
    return _SCRIPT.format(
        setup="".join(f"{line}\n" for line in setup),
        ended=f"{folder_word}/{run_folder.EXIT_CODE}" if folder else "",
        note=note_lines if folder else "",
        over=shlex.quote(OVER),
        command=shlex.join(command),
        again=os.EX_TEMPFAIL,
        signalled=128 + signal.SIGTERM,
    )


# Kubernetes starts another launcher after any exit code but 0. So the file $ended on the volume keeps the run's exit
# code, and a launcher that finds it only repeats the code. `tell` writes the termination message, which `follow` reads.
# $asked is as in `shell_text`: empty, `early` or `told`. A signal interrupts `wait`, so the last `wait` gets the exit
# code; it is that of SIGTERM if the run was not yet ready for the signal.
_SCRIPT = """\
child= asked= ended={ended}
tell() {{ [ ! -w /dev/termination-log ] || echo {over} > /dev/termination-log; }}
trap 'asked=early; [ -z "$child" ] || {{ asked=told; kill -TERM $child; }}' TERM
[ ! -s "$ended" ] || {{ tell; exit $(cat "$ended"); }}
{note}{setup}[ -z "$asked" ] || exit {again}
{command} & child=$!
[ "$asked" != early ] || kill -TERM $child
wait $child
while kill -0 $child 2> /dev/null; do wait $child; done
wait $child; code=$?
[ -z "$asked" ] || [ $code -ne {signalled} ] || code={again}
[ $code -eq {again} ] || [ -z "$ended" ] || {{ echo $code > "$ended" && tell; }}
exit $code
"""
_NOTE = """\
mkdir -p {at} && echo {note} > {at}/{file} || {{
echo "matex: $(hostname) cannot write {at}: is the volume of --claim full, or may $(id -un) not write there?" >&2
tell; exit {code}; }}
"""
