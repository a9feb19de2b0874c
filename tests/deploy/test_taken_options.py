"""Options of sbatch that a job has from `matex submit`: refused however they are spelt, or handed to sbatch."""

from __future__ import annotations

import os

import pytest

import matex_tf
from matex_tf.deploy import slurm
from matex_tf.deploy.kubernetes import Kubernetes
from matex_tf.deploy.sbatch import taken_options
from matex_tf.deploy.sbatch.job_script import Slurm, list_words
from matex_tf.launch import cli
from matex_tf.tune.settings import Settings

TAKEN = {  # long name: letter, what there is instead
    "nodes": ("N", "--nodes"), "ntasks": ("n", "--ranks-per-node"), "ntasks-per-node": ("", "--ranks-per-node"),
    "tasks-per-node": ("", "--ranks-per-node"), "ntasks-per-tres": ("", "--ranks-per-node"),
    "ntasks-per-gpu": ("", "--ranks-per-node"), "tres-per-task": ("", "--cpus"),
    "cpus-per-task": ("c", "--cpus"), "gpus-per-node": ("", "--gpus-per-node"), "time": ("t", "--time"),
    "job-name": ("J", "--name"), "account": ("A", "--account"), "partition": ("p", "--partition"),
    "output": ("o", "matex follow"), "error": ("e", "matex follow"), "open-mode": ("", "appends"),
    "signal": ("", "warns"), "chdir": ("D", "change the folder"), "array": ("a", "--array sets"),
    "clusters": ("M", "login node"), "wait": ("W", "--no-follow"), "wrap": ("", "the script"),
    "test-only": ("", "--dry-run"), "quiet": ("Q", "the number of the job"), "version": ("V", "sbatch"),
    "help": ("h", "sbatch"), "usage": ("", "sbatch"),
}  # fmt: skip
# Of the man page of sbatch.
FLAGS, OTHER_LETTERS = "HOsv", "bBCdFGiLkmqSwx"  # letters without a value, and with one, which a job may have
# All long options of sbatch 22.05 and 24.05 that a job may have beside ours.
OTHERS = (
    "bb bbf begin comment constraint contiguous core-spec cores-per-socket cpu-freq deadline delay-boot dependency "
    "distribution exclude exclusive export export-file extra extra-node-info get-user-env gpu-bind gpu-freq gpus gres "
    "gres-flags hold input kill-on-invalid-dep licenses mail-type mail-user mem mem-per-cpu mem-per-gpu mincpus "
    "network nice no-kill no-requeue nodefile nodelist ntasks-per-core ntasks-per-socket oversubscribe overcommit "
    "prefer priority profile qos reboot requeue reservation sockets-per-node spread-job switches thread-spec "
    "threads-per-core time-min tmp use-min-nodes verbose wait-all-nodes wckey"
).split()


def spell_option(name, letter):
    """The words by which sbatch takes the option; a name may be cut short where no other begins alike."""
    yield from (f"--{name}=3", f"--{name} 3", f"--{name}")
    others = [*OTHERS, *TAKEN]
    for length in range(1, len(name)):
        if [one for one in others if one.startswith(name[:length])] == [name]:
            yield f"--{name[:length]}=3"
    if letter:
        yield from (f"-{letter}3", f"-{letter} 3", f"-{letter}", f"-{FLAGS}{letter}3")
        yield from (f"-{flag}{letter}3" for flag in FLAGS)


@pytest.mark.parametrize("name", TAKEN)
def test_an_option_of_ours_is_refused_in_each_spelling(name):
    letter, instead = TAKEN[name]
    for word in spell_option(name, letter):
        with pytest.raises(ValueError, match="--sbatch takes no ") as refused:
            Slurm(sbatch=("--hold", word))
        assert instead in str(refused.value) and word in str(refused.value)


def test_the_others_of_sbatch_are_taken():
    words = tuple(f"--{name}=1" for name in OTHERS) + ("-C fast", "-q long", "-Hs", "-x h1", "-w h[1-3]", "-Bc", "-dn")
    assert Slurm(sbatch=words).sbatch == words


def test_a_value_after_a_letter_is_no_option():
    """As in -bTIME: letters of ours within it say nothing."""
    value = "".join(letter for letter, _ in TAKEN.values()) + FLAGS + OTHER_LETTERS
    words = tuple(f"{before}{letter}{value}" for before in ("-", f"-{FLAGS}") for letter in OTHER_LETTERS)
    assert Slurm(sbatch=words).sbatch == words
    assert Slurm(sbatch=("-bs",)).takes_whole_nodes and not Slurm(sbatch=("-sbs",)).takes_whole_nodes


@pytest.mark.parametrize(
    "asked, word",
    [
        ({"gpus_per_node": 2}, "--gpus=3"), ({"gpus_per_node": 2}, "-G3"), ({"gpus_per_node": 2}, "--gpus-per-task=1"),
        ({"gpus_per_node": 2}, "--gres=gpu:a100:1"), ({"gpus_per_node": 2}, "--gres=craynetwork:1,gpu:1"),
        ({"gpus_per_node": 2}, "--gre=gpu:1"), ({"gpus_per_node": 2}, "--gres gpu:1"),
        ({"cpus": 2}, "--cpus-per-gpu=3"),
    ],
)  # fmt: skip
def test_what_goes_against_ours_is_taken_without_it(asked, word):
    assert Slurm(sbatch=(word,)).sbatch == (word,)
    with pytest.raises(ValueError, match="--sbatch takes no"):
        Slurm(**asked, sbatch=(word,))


def test_refused_on_the_command_line_in_a_file_and_in_lines_of_setup(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "x.py").touch()
    assert cli.main(["submit", "--slurm", "--nodes", "2", "--sbatch=--nodes=3", "x.py"]) == 2
    assert "--sbatch takes no --nodes=3: --nodes sets" in capsys.readouterr().err
    assert cli.main(["submit", "--slurm", "--setup", "ulimit -c 0\n  #SBATCH --nodes=3", "x.py"]) == 2
    assert "#SBATCH in lines of setup: --sbatch=OPTION" in capsys.readouterr().err
    (tmp_path / "matex.toml").write_text('[slurm]\nsbatch = ["-a1-3"]\n')
    assert cli.main(["submit", "--slurm", "x.py"]) == 2
    assert "matex.toml: --sbatch takes no -a1-3 (--array): " in capsys.readouterr().err
    assert not os.path.exists("runs")


def test_words_of_sbatch_in_a_script_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "x.py").write_text("#!/usr/bin/env python\n#SBATCH --gpus=4\nimport os\n")
    assert cli.main(["submit", "--slurm", "x.py"]) == 1
    assert "x.py: sbatch does not read its #SBATCH lines; use --sbatch=OPTION" in capsys.readouterr().err


def test_variables_of_the_environment():
    """The command line wins over variables; those by which a run would lose its folder or its end are refused."""
    words = list_words(Slurm(nodes=2, name="a", account="b", time="5"), "runs/a-1")
    given = [f"--{name}=" for name in ("nodes", "job-name", "ntasks-per-node", "output", "open-mode", "signal", "time")]
    assert all(any(word.startswith(one) for word in words) for one in given)
    ours = dict.fromkeys(["SBATCH_JOB_NAME", "SBATCH_NODES", "SBATCH_OUTPUT", "SBATCH_OPEN_MODE", "SBATCH_SIGNAL"], "x")
    defaults = dict.fromkeys(["SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_GPUS", "SBATCH_EXPORT", "SLURM_ARRAY_INX"], "x")
    taken_options.check_environment({**ours, **defaults}, words)
    for name in ("ARRAY_INX", "ERROR", "WAIT", "CLUSTERS"):
        with pytest.raises(ValueError, match=f"SBATCH_{name}=1-3 of the environment: .*Unset it"):
            taken_options.check_environment({f"SBATCH_{name}": "1-3"}, words)


@pytest.mark.parametrize(
    "asked, name, value",
    [
        ({"gpus_per_node": 2}, "GPUS", "4"), ({"gpus_per_node": 2}, "GPUS_PER_TASK", "1"),
        ({"gpus_per_node": 2}, "GRES", "gpu:1"), ({"gpus_per_node": 2}, "TRES_PER_TASK", "gres/gpu=1"),
        ({"cpus": 2}, "CPUS_PER_GPU", "3"), ({"cpus": 2}, "TRES_PER_TASK", "cpu=8"),
    ],
)  # fmt: skip
def test_a_variable_that_goes_against_ours_is_taken_without_it(asked, name, value):
    taken_options.check_environment({f"SBATCH_{name}": value}, list_words(Slurm(), "runs/a-1"))
    with pytest.raises(ValueError, match=f"SBATCH_{name}={value} of the environment"):
        taken_options.check_environment({f"SBATCH_{name}": value}, list_words(Slurm(**asked), "runs/a-1"))


def test_other_devices_than_gpus_go_beside_them():
    asked = Slurm(gpus_per_node=2, sbatch=("--gres=craynetwork:1", "--gres-flags=enforce-binding"))
    taken_options.check_environment({"SBATCH_GRES": "craynetwork:1"}, list_words(asked, "runs/a-1"))


@pytest.mark.parametrize(
    "run", ["-n 4", "-n4", "-np 4", "--np=4", "-c 4", "--restarts 1", "--restarts=1", "--record a"]
)
@pytest.mark.parametrize("asks", [Slurm, Kubernetes, Settings])
def test_options_of_matex_run_that_are_said_already(asks, run):
    with pytest.raises(ValueError, match=r"run takes no -"):
        asks(run=("--profile", run))
    assert asks(run=("--mca pml ob1", "--no-restart")).run


@pytest.mark.parametrize("run", ["--hostfile a", "--host=a,b", "-H a"])
def test_pods_are_the_hosts_of_kubernetes(run):
    with pytest.raises(ValueError, match="run takes no -.*: the hosts are the workers"):
        Kubernetes(run=(run,))


@pytest.mark.parametrize("name", ["MATEX_STATE", "MATEX_RECORD"])
def test_variables_of_a_folder_are_not_told_otherwise(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    for cluster in [Slurm(), Kubernetes(claim="shared")] + [None] * (name == "MATEX_RECORD"):
        with pytest.raises(ValueError, match=f"env takes no {name}"):
            matex_tf.launch("x.py", ranks=1, cluster=cluster, env={name: "elsewhere"})
    assert Kubernetes(env=(f"{name}=here",)).env


@pytest.mark.parametrize(
    "asked, whole",
    [
        ({}, True), ({"sbatch": ("--mem=4G", "--qos=long")}, True), ({"cpus": 8}, False), ({"gpus_per_node": 1}, False),
        ({"sbatch": ("--gres=gpu:a100:1",)}, False), ({"sbatch": ("-s",)}, False), ({"sbatch": ("-G1",)}, False),
        ({"sbatch": ("--cpus-per-gpu=8",)}, False), ({"sbatch": ("--mincpus=4",)}, False),
    ],
)  # fmt: skip
def test_nodes_are_whole_unless_something_says_how_much_of_them(asked, whole):
    made = Slurm(nodes=2, **asked)
    assert ("--exclusive" in list_words(made, "runs/a-1")) is whole
    assert made.leaves_cores_to_slurm is (not whole and not {"cpus"} & asked.keys() and "cpus" not in str(made.sbatch))
    assert ("2 whole nodes" in slurm.SLURM.describe_job(slurm.Job("1", "runs/a-1"), made)) is whole
