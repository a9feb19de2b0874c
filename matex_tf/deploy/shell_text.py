"""What the scripts of jobs have in common, whatever the scheduler: a run that is warned, keeps its state and ends."""

from __future__ import annotations

import os
import shlex
import signal

from matex_tf.deploy.options import parse_time

WARNING = 120  # seconds before the time limit, at which ranks keep their state and end
KEPT = """\
export MATEX_STATE="$run_folder/state"
export MATEX_RECORD="$run_folder"
"""


def compute_warning(time: str) -> int:
    """How many seconds before the end of the time limit `time` the ranks are warned."""
    return min(WARNING, parse_time(time) // 4) if time else WARNING


def quote_folder(folder: str) -> str:
    """In the shell `folder`, which is seen from where the job is submitted unless it is absolute."""
    return shlex.quote(folder) if os.path.isabs(folder) else f'"$PWD"/{shlex.quote(folder)}'


def format_script(heads: str, folder: str, before: str, command: str, after: str) -> str:
    """The script of a job that runs `command`, with lines `before` it, and `after` it, where $code is its exit code.

    $run_folder is what `folder` is in the shell.
    """
    return _SCRIPT.format(
        heads=heads,
        folder=folder,
        before=before,
        command=command,
        after=after,
        again=os.EX_TEMPFAIL,
        signalled=128 + signal.SIGUSR1,
    )


# The shell waits in the background, so that it hears the warning. A run that was not ready for one ends by that signal.
_SCRIPT = """\
#!/bin/bash
{heads}run_folder={folder} child= asked=
trap 'asked=early; [ -z "$child" ] || {{ asked=told; kill -USR1 $child; }}' USR1
{before}rm -f "$run_folder/exit-code"
{command} & child=$!
[ "$asked" != early ] || kill -USR1 $child
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
[ -z "$asked" ] || [ $code -ne {signalled} ] || code={again}
{after}echo $code > "$run_folder/exit-code"
exit $code
"""
