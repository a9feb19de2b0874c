"""The `matex` command: how it reads its words, and what it asks of mpirun."""

from __future__ import annotations

import importlib
import re
import shlex
import sys

import click
import pytest
from matex_command import PLAIN, matex

import launch
from matex_tf import settings
from matex_tf.launch import cli, command_line, run_options
from matex_tf.launch.mpirun_command import Mpirun
from matex_tf.version import __version__
from matex_tf.world import mpirun_options
from matex_tf.world.mpirun_options import MPICH, OPENMPI


@pytest.mark.parametrize(
    "words, expected",
    [
        ("-n 4 train.py", run_options.Run(4, ["train.py"])),
        ("-np 4 train.py -n 3 --dry-run", run_options.Run(4, ["train.py", "-n", "3", "--dry-run"])),
        ("--profile -n 2 a.py --profile", run_options.Run(2, ["a.py", "--profile"], profile=True)),
        ("-n 2 --explain a.py", run_options.Run(2, ["a.py"], explain=True)),
        ("--record runs/a -n 2 a.py", run_options.Run(2, ["a.py"], record="runs/a")),
        ("--elastic -n 3 a.py", run_options.Run(3, ["a.py"], restarts=3, elastic=True)),
        ("--elastic --restarts 1 -n 3 a.py", run_options.Run(3, ["a.py"], restarts=1, elastic=True)),
        ("--np=2 --dry-run -m a.b x", run_options.Run(2, ["-m", "a.b", "x"], [], True)),
        (
            "--host a:1,b:1 -n 2 --mca pml ob1 t.py",
            run_options.Run(2, ["t.py"], ["--host", "a:1,b:1", "--mca", "pml", "ob1"]),
        ),
    ],
)
def test_what_run_was_asked(words, expected):
    assert cli.parse_run(words.split()) == expected


@pytest.mark.parametrize(
    "words, message",
    [
        ("train.py --epochs 3", "how many ranks.*matex run -n 4 train.py --epochs 3"),
        ("-n 2", "no script is named"),
        ("-n 2 -m", "no script is named"),
        ("-n 0 train.py", "-n expects the number of ranks, 1 or more; '0'"),
        ("-n two train.py", "'two' was given"),
        ("--profile -n 1 train.py", "-n expects 2 or more"),
        ("--explain -n 1 train.py", "-n expects 2 or more"),
        ("--record a -n 1 train.py", "--record tells what ranks use and wait for: -n expects 2 or more"),
        ("--explain --check train.py", "do not go together"),
        ("--profile --check train.py", "do not go together"),
        ("--elastic --check train.py", "do not go together"),
        ("--elastic -n 1 train.py", "-n expects 2 or more"),
        ("--elastc -n 2 train.py", "there is no option --elastc; did you mean --elastic?"),
        ("-n 2 --restart 3 train.py", "there is no option --restart; did you mean --restarts?"),
        ("-n 2 --dry_run train.py", "there is no option --dry_run; did you mean --dry-run?"),
        ("--strategy asynch -n 2 train.py", "one of auto, allreduce, sharded, async, .*; 'asynch' was given"),
        ("--strategy sharded:2 -n 2 train.py", "one of auto, allreduce, sharded, async.*; 'sharded:2' was given"),
        ("--strategy local -n 2 train.py", "local:H, with whole numbers S and H.*; 'local' was given"),
        ("--strategy local:0 -n 2 train.py", "H from 1, and K from 0; 'local:0' was given"),
        ("--strategy servers:some -n 2 train.py", "servers:auto, servers:S, .*; 'servers:some' was given"),
        ("--strategy servers:3 -n 2 train.py", "--strategy servers:3 expects 3 ranks or more; -n 2 was given"),
        ("--strategy servers:2:only -n 2 train.py", "2:only expects 3 ranks or more; -n 2 was given. 2 only serve"),
        ("--strategy servers:2:on -n 3 train.py", "servers:S:only, .*; 'servers:2:on' was given"),
        ("--strategy local:4 --check train.py", "--strategy local and --check do not go together"),
        ("--strategy async --adapt -n 2 train.py", "--strategy async and --adapt do not go together"),
        ("--adapt=rank -n 2 train.py", "--adapt expects one of off, on, ranks; 'rank' was given"),
        ("--adapt ranks -n 2 train.py", "--adapt takes its value with an equals sign: --adapt=ranks"),
        ("-n 2 --adapt ranks train.py", "--adapt takes its value with an equals sign: --adapt=ranks"),
        ("-n 1 --adapt train.py", "--adapt shares rows out by the speed of ranks: -n expects 2 or more"),
        ("-n 2 --adapt=ranks --check train.py", "--adapt and --check do not go together"),
        ("-n 2 --adapt=ranks --elastic train.py", "--adapt=ranks and --elastic do not go together"),
        ("--strategy async --adapt=ranks -n 2 train.py", "--strategy async and --adapt do not go together"),
        ("--strategy async:0 --check train.py", "--strategy async and --check do not go together"),
        ("--elastic=1 -n 2 train.py", "Option '--elastic' does not take a value"),
    ],
)
def test_what_run_cannot_do(words, message):
    with pytest.raises(click.UsageError, match=message):
        cli.parse_run(words.split())


@pytest.mark.parametrize(
    "words, message",
    [
        (["rum"], "there is no command rum; did you mean run? They are run, info, settings, build, simulate"),
        (["run", "-n", "2", "no-such.py"], "there is no file no-such.py in"),
        (["info", "now"], "unexpected extra argument (now)"),
        (["build", "--xl"], "there is no option --xl; did you mean --xla?"),
        (["plan", "--memroy", "1GB", "train.py"], "there is no option --memroy; did you mean --memory?"),
        (["inof"], "there is no command inof; did you mean info?"),
        (["settings", "overlp"], "there is no setting MATEX_OVERLP; did you mean MATEX_OVERLAP?\n"),
        (["settings", "q" * 40], f"there is no setting MATEX_{'Q' * 40}\n"),
    ],
)
def test_a_wrong_command_line_is_answered(words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_options_of_mpirun_are_not_taken_for_misspelt_ones(capsys):
    known = [f"--{name}" for name in mpirun_options.ARITY if name not in ("n", "np", "c", "h", "help", "dry-run")]
    for name in known:
        assert cli.parse_run([name, *["x"] * mpirun_options.ARITY[name[2:]], "-n", "2", "t.py"]).options[0] == name
    asked = cli.parse_run("-n 2 -x --profil --mca check stepz t.py".split())
    assert asked.options == ["-x", "--profil", "--mca", "check", "stepz"] and not capsys.readouterr().err
    cli.parse_run("--enable-instant-on-support -n 2 t.py".split())
    assert "--enable-instant-on-support is no option of matex run; it goes to mpirun" in capsys.readouterr().err
    asked = cli.parse_run("-n 2 --explain -- --explan 3 t.py --profile".split())
    assert asked == run_options.Run(2, ["t.py", "--profile"], ["--explan", "3"], explain=True)
    assert not capsys.readouterr().err


def test_help_and_version(capsys):
    texts = {"run": "--restarts TIMES", "info": "compiled ops", "build": "--xla", "settings": "NAME"}
    for command in texts:
        module, _, name = cli.LAZY_COMMANDS.get(command, "").partition(":")
        alone = getattr(importlib.import_module(module), name) if module else cli.matex.commands[command]
        alone.make_context(command, [], resilient_parsing=True)  # a context without the group's settings
    assert cli.main(["--help"]) == 0 and "matex run -n 4 train.py" in capsys.readouterr().out
    for command, has in texts.items():
        for word in ("--help", "-h"):
            assert cli.main([command, word]) == 0
            said = capsys.readouterr().out
            assert (
                said.startswith(f"Usage: matex {command}") and has in said and said.count("Usage: matex run") in (0, 2)
            )
    assert cli.main(["--version"]) == 0 and __version__ in capsys.readouterr().out
    assert cli.main([]) == 2 and "matex run -n 4 train.py" in capsys.readouterr().out


def test_settings_are_listed_with_where_they_come_from(capsys, monkeypatch):
    monkeypatch.setenv("MATEX_OVERLAP", "ON")
    monkeypatch.setenv("MATEX_STATE", "[b]:b:[/b]")
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["settings"]) == 0
    rows = [re.split(r"[│┃]", line) for line in capsys.readouterr().out.splitlines()]
    shown = {row[1].strip(): [cell.strip() for cell in row[2:4]] for row in rows if len(row) > 4}
    assert shown["MATEX_OVERLAP"] == ["on", "environment"] and shown["MATEX_SCALING"] == ["strong", "default"]
    assert shown["MATEX_STATE"] == ["[b]:b:[/b]", "environment"]
    assert {one.variable for one in settings.TABLE} < set(shown)
    assert cli.main(["settings", "overlap"]) == 0
    assert next(one.meaning for one in settings.TABLE if one.name == "overlap") in capsys.readouterr().out
    monkeypatch.setenv("MATEX_OVERLAP", "perhaps")
    assert cli.main(["settings"]) == 2
    assert "MATEX_OVERLAP='perhaps': expected one of auto, on, off" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "build"])
def test_a_wrong_setting_is_no_traceback(tmp_path, command, capsys, monkeypatch):
    monkeypatch.setenv("MATEX_SCALING", "stronk")
    monkeypatch.setattr(settings, "_current", None)
    (tmp_path / "a.py").touch()
    assert cli.main([command, *([str(tmp_path / "a.py")] if command == "plan" else [])]) == 2
    assert capsys.readouterr().err.startswith("matex: MATEX_SCALING='stronk': expected one of strong, weak")


def test_dry_run_prints_a_line_that_can_be_pasted(tmp_path):
    script = tmp_path / "my script.py"
    script.write_text(
        "import sys, os\nprint(sys.argv[1:], *map(os.getenv, ['PYTHONHASHSEED', 'GLIBC_TUNABLES']), flush=True)\n"
    )
    result = matex("run", "-n", 2, "--dry-run", script, "a b", "$c").check()
    words = shlex.split(result.stdout)
    assert not any("MATEX_PROFILE" in word for word in words)
    assert words[-5:] == ["-m", "matex_tf", str(script), "a b", "$c"]
    pasted = launch.execute(["bash", "-c", result.stdout], launch.environment(PLAIN), 60).check()
    assert pasted.stdout.count("['a b', '$c'] 0 glibc.malloc.hugetlb=1") == 2


@pytest.mark.parametrize(
    "option, variable, value",
    [
        ("--record=a b", "MATEX_RECORD", "{}/a b"),
        ("--strategy=sharded", "MATEX_STRATEGY", "sharded"),
        ("--elastic", "MATEX_ELASTIC", "1"),
        ("--profile", "MATEX_PROFILE", "1"),
        ("--explain", "MATEX_EXPLAIN", "1"),
        ("--memory=2MiB", "MATEX_MEMORY", "2097152"),
    ],
)
@pytest.mark.parametrize("hosts", [[], ["--host", "a,b"]])
def test_an_option_is_a_setting_of_the_ranks_and_counts_more_than_a_variable(
    capsys, monkeypatch, tmp_path, option, variable, value, hosts
):
    monkeypatch.setenv(variable, "0")
    monkeypatch.chdir(tmp_path)
    other = f"{variable}_SECONDS=5"  # another variable, whose name begins with this one
    assert cli.main(["run", option, "-x", other, "-n", "2", *hosts, "--dry-run", "train.py"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert [word for word in words if variable in word] == [f"{variable}={value.format(tmp_path)}", other]
    assert not list(tmp_path.iterdir())


def test_a_strategy_is_a_setting_of_the_ranks(capsys):
    for strategy in ("sharded", "servers:auto", "servers:1:only", "async:3", "local:4"):
        assert cli.main(["run", "-n", "2", "--dry-run", "--strategy", strategy, "x.py"]) == 0
        assert f"MATEX_STRATEGY={strategy}" in capsys.readouterr().out


def test_what_is_adapted_is_a_setting_of_the_ranks(capsys, monkeypatch):
    monkeypatch.setenv("MATEX_ADAPT", "ranks")
    assert cli.parse_run("-n 2 x.py".split()).adapt == "ranks" and cli.parse_run("-n 2 x.py".split()).restarts == 3
    for option, adapt, restarts in (("--adapt", "on", 0), ("--adapt=off", "off", 0), ("--adapt=Ranks", "ranks", 3)):
        assert cli.main(["run", option, "-n", "2", "--dry-run", "x.py"]) == 0
        words = shlex.split(capsys.readouterr().out)
        assert [word for word in words if "ADAPT" in word] == [f"MATEX_ADAPT={adapt}"]
        assert cli.parse_run([option, "-n", "2", "x.py"]).restarts == restarts
    assert cli.parse_run("--adapt=ranks -n 1 x.py --adapt".split()).target == ["x.py", "--adapt"]


@pytest.mark.parametrize(
    "size, already, said",
    [
        ("2GiB", "", ["MATEX_MICROBATCH=auto", f"MATEX_MEMORY={2 << 30}"]),
        ("here", "", ["MATEX_MICROBATCH=auto"]),
        ("2GiB", "8", [f"MATEX_MEMORY={2 << 30}"]),
    ],
)
def test_memory_of_a_rank_asks_for_parts_that_fit(size, already, said, capsys, monkeypatch):
    if already:
        monkeypatch.setenv("MATEX_MICROBATCH", already)
    assert cli.main(["run", "-n", "2", "--dry-run", "--memory", size, "x.py"]) == 0
    out = capsys.readouterr().out
    assert [word for word in out.split() if word.startswith(("MATEX_MICROBATCH=", "MATEX_MEMORY="))] == said


def test_a_profile_is_a_setting_of_the_ranks(capsys):
    assert cli.main(["run", "-n", "2", "--profile", "--dry-run", "x.py"]) == 0
    assert "MATEX_PROFILE=1" in capsys.readouterr().out


def test_the_command_itself_joins_no_mpi_and_loads_neither_tensorflow_nor_other_commands():
    program = (
        "import sys; from matex_tf.launch import cli; assert cli.main(['run', '-n', '2', '--dry-run', 'x.py']) == 0; "
        "others = {module.partition(':')[0] for module in cli.LAZY_COMMANDS.values()}; assert len(others) > 4, others; "
        "loaded = {'tensorflow', 'mpi4py.MPI', 'rich', 'matex_tf.planner', *others} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    launch.execute([sys.executable, "-c", program], launch.environment(), 60).check()


def test_an_interrupt_while_nothing_runs_yet_is_no_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "find_mpirun", interrupted)
    assert cli.main(["run", "-n", "2", "--dry-run", "x.py"]) == 130 and capsys.readouterr().err == ""


def test_elastic_asks_for_an_mpi_that_leaves_other_ranks_alone(monkeypatch):
    asked = run_options.Run(2, ["a.py"], restarts=3, elastic=True)
    monkeypatch.setattr(command_line, "find_mpirun", lambda: Mpirun("/opt/bin/mpirun", OPENMPI, "5.0.3"))
    line = shlex.join(command_line.make_command_line(asked))
    assert "--with-ft ulfm" in line and "-x MATEX_ELASTIC=1" in line and "-x MATEX_STATE=" in line
    for family, version in ((OPENMPI, "4.1.6"), (MPICH, "4.2")):
        other = Mpirun("/opt/bin/mpirun", family, version)
        monkeypatch.setattr(command_line, "find_mpirun", lambda other=other: other)
        with pytest.raises(
            click.UsageError, match=f"needs Open MPI 5 or later.*is {family} {version}.*--restarts goes"
        ):
            command_line.make_command_line(asked)
