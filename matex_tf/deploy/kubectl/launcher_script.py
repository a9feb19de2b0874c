"""The script that the container of a launcher runs."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence

from matex_tf.deploy import run_folder

OVER = "matex: the run is over"
"""What a launcher leaves in its pod's status where no other is to go on: its exit code is the run's."""


def format_script(command: Sequence[str], setup: Sequence[str], folder: str, note: str) -> str:
    """The script that runs `command` after the lines of `setup`. `folder` is that of the run ("" without a volume),
    in which `note` says which job it is.
    """
    at = shlex.quote(folder)
    keep = _NOTE.format(at=at, note=shlex.quote(note), file=run_folder.NOTE, code=os.EX_CANTCREAT)
    return _SCRIPT.format(
        setup="".join(f"{line}\n" for line in setup),
        ended=f"{at}/{run_folder.EXIT_CODE}" if folder else "",
        note=keep if folder else "",
        over=shlex.quote(OVER),
        command=shlex.join(command),
        again=os.EX_TEMPFAIL,
        signalled=128 + signal.SIGTERM,
    )


# Kubernetes starts a launcher again whatever it ended with. One that has ended by itself ends with the same code.
# A signal ends a wait, and the child may be gone right after: the last wait gives its code, which is the
# signal's where the run was not ready to be asked. What is over is told in the pod's status, where `follow` reads it.
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
