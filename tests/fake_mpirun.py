"""An mpirun whose ranks end as a test says, for what `matex run` makes of that."""

import json

from matex_tf.launch import mpirun_command, restarts
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.world import mpirun_options


def say(**said):
    """The shell command by which a rank appends to its record."""
    return f"printf '\\n%s' '{json.dumps(said)}' >> \"$MATEX_PROOF/rank-fake\""


def started(tmp_path, monkeypatch, capfd, ends, restart=3, options=(), follows=False, may_choose=False):
    """Exit code, messages and starts of a run whose mpirun ends as `ends` says, one time after the other.

    Host b answers once there is a file `back`.
    """
    monkeypatch.chdir(tmp_path)
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\ncase "$*" in *"-n 1 true"*) case "$*" in *"--host b"*) [ -e back ]; exit;; esac; exit 0;; esac\n'
        'printf "%s\\n" "$*" >> starts\nn=$(wc -l < starts)\n'
        + say(state="begun")
        + "\ncase $n in\n"
        + "".join(f"{number}) {end};;\n" for number, end in enumerate(ends, 1))
        + "esac\n"
    )
    mpirun.chmod(0o755)
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.01)
    code = restarts.RestartedRun(
        Places(Attempt(4, list(options)), mpirun_command.Mpirun(str(mpirun), mpirun_options.OPENMPI, "5.0"), follows),
        restart,
        lambda attempt: [str(mpirun), *attempt.options, "-n", str(attempt.ranks), attempt.strategy or "train.py"],
        None,
        str(tmp_path / "state"),
        may_choose=may_choose,
    ).run()
    return code, capfd.readouterr().err, (tmp_path / "starts").read_text().splitlines()
