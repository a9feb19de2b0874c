"""The shell text of all job scripts: run a command, forward the warning of the time limit, record the exit code.

The warning is the signal USR1, which the scheduler or a timer sends to the script shortly before the time limit. After
the exit code EX_TEMPFAIL (75) the lines of `format_again` continue the run.
"""

from __future__ import annotations

import os
import shlex
import signal

from matex_tf.deploy import run_folder
from matex_tf.deploy.options import parse_time

WARNING = 120  # seconds before the time limit when the ranks are warned, save their state and end
RUN_VARIABLES = """\
export MATEX_STATE="$run_folder/state"
export MATEX_RECORD="$run_folder"
"""


def compute_warning(time: str) -> int:
    """The number of seconds between the warning and the end of the time limit `time`."""
    return min(WARNING, parse_time(time) // 4) if time else WARNING


def quote_folder(folder: str) -> str:
    """Quote `folder` for the shell. A relative folder is relative to the folder of submission."""
    return shlex.quote(folder) if os.path.isabs(folder) else f'"$PWD"/{shlex.quote(folder)}'


def format_script(heads: str, folder: str, before: str, command: str, after: str) -> str:
    """The job script: `heads`, lines `before` the command, the command, and lines `after` it.

    `heads` begins with the lines of the scheduler's options. `folder` is a shell expression, the value of $run_folder.
    In lines `after`, $code is the exit code of the command, and the current folder is again the folder of submission,
    which lines `before` may have left.
    """
    trap, run = format_run(command, signal.SIGUSR1)
    return _SCRIPT.format(heads=heads, folder=folder, trap=trap, before=before, run=run, after=after)


def format_run(command: str, number: signal.Signals) -> tuple[str, str]:
    """Shell text that runs `command`, and passes the signal `number` on to it: the trap, and later the command.

    $code is then the exit code of the command; EX_TEMPFAIL if the command has ended by the signal.
    """
    name = number.name.removeprefix("SIG")
    run = _RUN.format(command=command, signal=name, signalled=128 + number, again=os.EX_TEMPFAIL)
    return _TRAP.format(signal=name), run


def format_note(cluster: str, job: str, submitted: str = "") -> str:
    """Shell text that writes the note of a run's folder. `job` and `submitted` may contain variables of the shell."""
    note = run_folder.format_note(cluster, job, submitted=submitted).strip().replace('"', '\\"')
    return _NOTE.format(note=note, file=run_folder.NOTE)


# The note is replaced atomically, because a follower may read it at any time.
_NOTE = """\
echo "{note}" \\
        > "$run_folder/{file}.new" && mv "$run_folder/{file}.new" "$run_folder/{file}"\
"""


def format_again(job: str, lines: str, text: str = "", value: str = "") -> str:
    """Shell text for a run that asks to be started again: print a message about `job`, and execute `lines`.

    `text`, a format of printf, continues the message, with the word `value`. $kept, in the message and for `lines`,
    tells whether there is a saved state.
    """
    return _AGAIN.format(job=job, lines=lines, text=text, value=value and f" {value}", again=os.EX_TEMPFAIL)


_AGAIN = """\
if [ $code -eq {again} ]; then
    kept=$([ -d "$run_folder/state" ] && echo "state kept" || echo "no state yet")
    printf 'matex: job %s %s after %d:%02d:%02d, %s{text}\\n' "{job}" \\
        "$([ -n "$asked" ] && echo asked to end || echo ended with exit code {again})" \\
        $((SECONDS / 3600)) $((SECONDS / 60 % 60)) $((SECONDS % 60)) "$kept"{value}
{lines}fi
"""
# - The command runs in the background, because a shell handles a signal between commands and during `wait`, but not
#   while a command of the foreground runs.
# - $asked is empty before the signal; `early` if the signal came before the command started; `told` if the trap has
#   passed it on to the command.
_TRAP = """\
child= asked=
trap 'asked=early; [ -z "$child" ] || {{ asked=told; kill -{signal} $child; }}' {signal}
"""
# - The signal ends `wait`, so the script waits again while the command runs.
# - The command may end before the script can wait again: then the last `wait` returns its exit code. 127 means that the
#   shell no longer has the code, because an earlier `wait` has returned it (bash in POSIX mode): that one counts.
# - A run that was not yet ready for the signal ends by it. Its exit code becomes that of a run that asks to be started
#   again.
_RUN = """\
{command} & child=$!
[ "$asked" != early ] || kill -{signal} $child
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
wait $child 2> /dev/null; last=$?; [ $last -eq 127 ] || code=$last
[ -z "$asked" ] || [ $code -ne {signalled} ] || code={again}
"""
_SCRIPT = """\
#!/bin/bash
{heads}submit_folder=$PWD run_folder={folder}
{trap}rm -f "$run_folder/exit-code"
{before}{run}cd "$submit_folder"
{after}echo $code > "$run_folder/exit-code"
exit $code
"""
