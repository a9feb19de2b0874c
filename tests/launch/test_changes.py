"""`matex run --adapt=ranks`: what ranks are offered as hosts come and go, and how the run goes on as they choose."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading

import pytest
from fake_mpirun import say, started

from matex_tf.adapt import offers
from matex_tf.launch import cli, process, restarts
from matex_tf.launch.hosts import answering, watch
from matex_tf.launch.hosts.places import Attempt, Places
from matex_tf.launch.mpirun_command import Mpirun
from matex_tf.world import mpirun_options
from matex_tf.world.hosts import host_lists
from matex_tf.world.hosts.host_lists import Host

OFFERED = "until grep -q '{}' \"$MATEX_PROOF/offer\" 2> /dev/null; do sleep 0.02; done"
LEAVE = 'printf %s \'{}\' > "$MATEX_PROOF/part"; mv "$MATEX_PROOF/part" "$MATEX_PROOF/change"; ' + say(
    state="left"
).replace("{", "{{").replace("}", "}}")
TRAIN = 'touch "$MATEX_PROOF/training"'
END = f"{TRAIN}; sleep 0.1; {say(state='ended')}"


def written(*words):
    return "; ".join(words)


def left(ranks, what="other ranks", **more):
    change = {"ranks": ranks, "what": what, "why": "it gains", "saved_at": "epoch 2", "saving_seconds": 0.5, **more}
    return LEAVE.format(json.dumps(change))


ADDRESSES = dict.fromkeys(("node1", "n1"), "127.0.1.1") | dict.fromkeys(("node2", "node2.cluster", "n2"), "10.9.0.2")
ADDRESSES |= {"n012": "10.9.0.12", "n012.cluster.edu": "192.168.0.12", "n012.other.edu": "192.168.1.12"}


@pytest.fixture(autouse=True)
def resolver(monkeypatch):
    """One that knows addresses and `ADDRESSES`, of which node1 is this host."""

    def find(name, *_, **__):
        if name not in ADDRESSES and not name.replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (ADDRESSES.get(name, name), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(process, "_TICK", 0.02)
    monkeypatch.setattr(watch, "READ_INTERVAL", 0.02)


def test_ranks_come_and_go_with_the_places_of_a_host_file(tmp_path, monkeypatch, capfd):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    ends = [
        written(
            TRAIN,
            "echo localhost slots=3 > hosts",
            OFFERED.format('ranks": 6, .*"reason_to_leave": ""'),
            left(6, "6 for 4"),
        ),
        written(
            TRAIN,
            "echo localhost slots=1 > hosts",
            OFFERED.format('"reason_to_leave": "localhost has 1 of 3'),
            left(2, is_forced=True, step_seconds_before=0.03),
        ),
        written(TRAIN, OFFERED.format('"step_seconds_before": 0.0,'), END),
    ]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=["--hostfile", "hosts"], follows=True)
    assert code == 0 and starts == [f"--hostfile hosts -n {ranks} train.py" for ranks in (4, 6, 2)]
    first, second = said.splitlines()
    assert first.startswith("matex: --adapt: 6 for 4 from epoch 2 on: it gains. The change took ")
    assert second.startswith("matex: --adapt: other ranks from epoch 2 on: it gains. The change took ")


def test_a_host_that_answers_again_is_offered_and_one_of_which_nothing_comes_is_left_again(
    tmp_path, monkeypatch, capfd
):
    ends = [
        "exit 1",  # b is lost
        written(TRAIN, OFFERED.format('"ranks": 2,'), "touch back", OFFERED.format('"ranks": 4,'), left(4)),
        "exit 1",
        written(TRAIN, "sleep 0.2", f'[ -e "$MATEX_PROOF/offer" ] && exit 1; {END}'),
    ]
    monkeypatch.setattr(watch, "QUERY_INTERVAL", 0.05)
    options = ["--host", "a:2,b:2"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    assert starts == [f"--host {where} train.py" for where in ("a:2,b:2 -n 4", "a:2 -n 2", "a:2,b:2 -n 4", "a:2 -n 2")]
    assert "no answer from b; continuing with 2 ranks on a" in said
    why = "the run ended before its first step (a rank or a host was lost (exit code 1)); continuing as before"
    assert f"--adapt: other ranks: {why}" in said


def test_a_rank_that_was_dropped_stays_away(tmp_path, monkeypatch, capfd):
    ends = [
        written(TRAIN, OFFERED.format('"ranks": 4,'), left(3, dropped_host="a.cluster")),
        written(TRAIN, OFFERED.format('"ranks": 3, .*"reason_to_leave": ""'), END),
    ]
    (tmp_path / "back").touch()
    options = ["--host", "a:2,b:2"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    assert starts == ["--host a:2,b:2 -n 4 train.py", "--host a:1,b:2 -n 3 train.py"]


def test_who_ends_the_run_for_good_comes_before_a_change(tmp_path, monkeypatch, capfd):
    ends = [written(TRAIN, say(asks_again=True), left(2)), END]
    code, _, starts = started(tmp_path, monkeypatch, capfd, ends, follows=True)
    assert code == 75 and len(starts) == 1


def test_a_host_that_is_lost_and_no_longer_named_takes_its_ranks_along(tmp_path, monkeypatch, capfd):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    options = ["--hostfile", "hosts"]
    ends = ["echo a slots=2 > hosts; exit 1", END]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0 and starts == [f"--hostfile hosts -n {ranks} train.py" for ranks in (4, 2)], said


def test_a_host_that_is_listed_again_has_to_answer_again(tmp_path, monkeypatch, capfd):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    (tmp_path / "back").touch()
    end = written(
        TRAIN,
        "echo b slots=2 >> hosts",
        OFFERED.format('"ranks": 6,'),
        "rm back; echo localhost slots=4 > hosts",
        OFFERED.format('"ranks": 4,'),
        "echo b slots=2 >> hosts; sleep 0.5",
        """grep -q '"ranks": 4,' "$MATEX_PROOF/offer" || exit 1""",
        END,
    )
    code, said, starts = started(tmp_path, monkeypatch, capfd, [end], options=["--hostfile", "hosts"], follows=True)
    assert code == 0 and len(starts) == 1, said


def test_other_hosts_are_used_only_where_ranks_have_left_for_them(tmp_path, monkeypatch, capfd):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    ends = [
        written(TRAIN, "echo localhost slots=6 > hosts", OFFERED.format('"ranks": 6'), left(4, strategy="sharded")),
        written(TRAIN, left(3, dropped_host="localhost")),
        written(TRAIN, OFFERED.format('"ranks": 5'), left(9, "9 for 3")),
        END,
    ]
    options = ["--hostfile", "hosts"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    where = ["--hostfile hosts -n 4 train.py", "--host localhost:4 -n 4 sharded", "--host localhost:3 -n 3 sharded"]
    assert starts == [*where, "--host localhost:5 -n 5 sharded"]
    assert "5 ranks in place of 3 from epoch 2" in said and "9 for 3" not in said


GROWN = "echo localhost slots=6 > hosts", OFFERED.format('"ranks": 6')
FOUR, SIX = "--hostfile hosts -n 4 train.py", "--hostfile hosts -n 6 train.py"
THREE = "--host localhost:3 -n 3 train.py"


@pytest.mark.parametrize(
    "words, change, back, offered, first, second",
    [
        (GROWN, {"ranks": 6}, "4 ranks in place of 6", '"ranks": 4,.*"step_seconds_before": 0.0',
         SIX, "--host localhost:4 -n 4 train.py"),
        ((), {"ranks": 4, "strategy": "sharded"}, "the former strategy",
         '"may_choose": false, "step_seconds_before": 0.0', "--hostfile hosts -n 4 sharded", FOUR),
        ((), {"ranks": 3, "dropped_host": "localhost"}, "4 ranks in place of 3",
         '"step_seconds_before": 0.0,.*"kept_hosts": .*localhost', THREE, FOUR),
    ],
)  # fmt: skip
def test_a_change_without_gain_is_undone_for_good(
    tmp_path, monkeypatch, capfd, words, change, back, offered, first, second
):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    offered_undoing = OFFERED.format(f'"step_seconds_before": 0.03, "undo_text": "{back} again"')
    ends = [
        written(TRAIN, *words, left(**change, step_seconds_before=0.03)),
        written(TRAIN, offered_undoing, left(9, "as before", undoes=True)),
        written(TRAIN, OFFERED.format(offered), "exit 1"),  # it is lost, and started again so
        written(TRAIN, "echo localhost slots=8 > hosts", OFFERED.format('"ranks": 8'), END),
    ]
    more = {"options": ["--hostfile", "hosts"], "follows": True, "may_choose": True}
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, **more)
    assert code == 0 and starts == [FOUR, first, second, second], said
    assert "matex: --adapt: as before from epoch 2 on: it gains. The change took " in said


@pytest.mark.parametrize(
    "words, change, start", [(GROWN, {"ranks": 6}, SIX), ((), {"ranks": 3, "dropped_host": "localhost"}, THREE)]
)
def test_where_undoing_comes_to_no_step_the_change_stays(tmp_path, monkeypatch, capfd, words, change, start):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    ends = [
        written(TRAIN, *words, left(**change, step_seconds_before=0.03)),
        written(TRAIN, OFFERED.format('"step_seconds_before": 0.03'), left(9, "as before", undoes=True)),
        "exit 1",
        END,
    ]
    options = ["--hostfile", "hosts"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0 and "as before: the run ended before its first step" in said and starts[3:] == [start], said


def make_places(options, ranks):
    return Places(Attempt(ranks, options.split()), Mpirun("mpirun", mpirun_options.OPENMPI, "5.0"), follows_files=True)


def drop_rank(places, name):
    host = places.find_host(name)
    places.drop_rank(host)
    return host


def test_a_rank_is_dropped_where_it_was():
    places = make_places("--host node1,node2", 8)
    assert drop_rank(places, "node2.cluster") == "node2"
    assert places.make_attempt(places.known).options == ["--host", "node1:4,node2:3"]
    assert places.make_attempt(places.known).ranks == 7 and places.make_attempt(places.known[1:]).ranks == 3
    assert places.make_attempt(places.known[:1]).ranks == 4, "the rank was on the host that is gone"
    places.restore_rank("node2")
    assert places.make_attempt(places.known) == Attempt(8, ["--host", "node1,node2"], "", places.known)
    places = make_places("--host node1:1,node2:1", 2)
    assert drop_rank(places, "node2") and places.make_attempt(places.known).options == ["--host", "node1:1"]
    assert places.make_attempt(places.known[1:]).ranks == 1, "the last host keeps a rank"
    places = make_places("", 4)
    assert drop_rank(places, "anything") == "" and places.make_attempt([]) == Attempt(3, [], "", [])


@pytest.mark.parametrize(
    "names, name, found",
    [
        ("10.9.0.4,node1,node2", "node1", "node1"),
        ("10.9.0.4,localhost,10.9.0.2", "node1", "localhost"),
        ("10.9.0.4,127.0.0.9,n2", "node1", "127.0.0.9"),
        ("10.9.0.4,n1,n2", "node2.cluster", "n2"),
        ("10.9.0.4,n1,10.9.0.2", "node2", "10.9.0.2"),
        ("n1,node3.cluster", "node3.other", "node3.cluster"),
        ("n1,n2", "node5", None),
        ("n1,n012", "n012.cluster.edu", "n012"),  # in another network
        ("n012.other.edu,n012", "n012.cluster.edu", None),
    ],
)
def test_hosts_are_recognized_by_name_alias_and_address(names, name, found):
    assert make_places(f"--host {names}", 3).find_host(name) == found


def test_a_nameserver_that_does_not_answer_holds_up_nothing(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait() and [])
    monkeypatch.setattr(host_lists, "RESOLVING", 0.05)
    assert make_places("--host node2,node3.cluster", 2).find_host("node3") == "node3.cluster"
    answers.set()


def test_addresses_are_those_of_this_host_only_where_it_has_them(monkeypatch):
    assert host_lists._is_own("127.0.1.1") and not host_lists._is_own("10.9.0.2")
    monkeypatch.setattr(socket, "socket", fail)  # as AF_INET6 in a kernel without
    assert not host_lists._is_own("::1")


def test_hosts_that_came_for_nothing_are_not_used_again():
    places = make_places("--host a:1", 1)
    before, both, more = ([Host(name, 1) for name in names] for names in ("a", "ab", "abc"))
    places.exclude_hosts(both, before)
    assert [places.make_attempt(hosts).hosts for hosts in (both, more, both[1:])] == [
        before,
        [*before, more[2]],
        both[1:],
    ]
    assert places.make_attempt([before[0], Host("b", 2)]).hosts == before, "with other slots it is the same host"
    places.exclude_hosts([Host("a", 3)], [Host("a", 2)])
    assert places.make_attempt([Host("a", 3)]).ranks == 2 and places.make_attempt([Host("a", 4)]).ranks == 4


def test_slots_that_came_for_nothing_are_used_once_a_host_is_lost():
    places = make_places("--host a:2,b:2", 4)
    before, more = [Host("a", 2), Host("b", 2)], [Host("a", 4), Host("b", 2)]
    places.exclude_hosts(more, before)
    for usable, hosts, ranks in ((more, before, 4), (more[:1], more[:1], 4), (more, before, 4)):
        attempt = places.make_attempt(usable)
        assert (attempt.hosts, attempt.ranks) == (hosts, ranks)


def test_of_hosts_that_are_not_recognized_no_rank_is_dropped(tmp_path, monkeypatch, capfd):
    options = ["--host", "10.0.0.1:2,10.0.0.2:2"]
    ends = [left(3, dropped_host="n012"), written(TRAIN, "sleep 0.2", f'[ -e "$MATEX_PROOF/offer" ] && exit 3; {END}')]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0 and starts == ["--host 10.0.0.1:2,10.0.0.2:2 -n 4 train.py"] * 2
    assert "none of the hosts 10.0.0.1, 10.0.0.2 is known to be n012; continuing as before" in said


@pytest.mark.parametrize(
    "told, ends_with, tells", [(signal.SIGTERM, 75, "SIGTERM before"), (signal.SIGINT, 130, "inte")]
)
@pytest.mark.parametrize("moment", ["make_attempt", "keep_hosts"])  # of a change, and of one that came to no step
def test_who_is_asked_to_end_within_a_change_keeps_the_state(
    tmp_path, monkeypatch, capfd, told, ends_with, tells, moment
):
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(Places, moment, lambda *_: os.kill(os.getpid(), told))
    code, said, starts = started(tmp_path, monkeypatch, capfd, [left(3), "exit 1", END], follows=True)
    assert code == ends_with and f"matex: {tells}" in said and len(starts) == 1 + (moment == "keep_hosts")
    assert (tmp_path / "state").exists()


@pytest.mark.parametrize("must", [False, True])
def test_ranks_that_had_to_leave_do_not_come_back(tmp_path, monkeypatch, capfd, must):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    shrink = written("echo localhost slots=2 > hosts", OFFERED.format('"reason_to_leave": "localhost has 2 of 4'))
    ends = [written(TRAIN, shrink, left(2, is_forced=must)), "exit 1", END]
    options = ["--hostfile", "hosts"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0 and ("continuing as before" in said) != must and ("restart 1 of 3" in said) == must
    back = "--hostfile hosts -n 2" if must else "--host localhost:4 -n 4"
    assert starts[2] == f"{back} train.py"


@pytest.mark.parametrize("seconds, meanwhile, ranks", [(30.0, "touch back", 4), (0.4, ":", 2)])
def test_ranks_that_must_leave_wait_for_all_hosts_that_come(tmp_path, monkeypatch, capfd, seconds, meanwhile, ranks):
    (tmp_path / "hosts").write_text("a slots=2\nc slots=2\n")
    monkeypatch.setattr(watch, "QUERY_INTERVAL", 0.05)
    monkeypatch.setattr(answering, "SECONDS", seconds)
    come = "printf 'b slots=2\\nd slots=2\\n' > hosts"
    hurries = "grep -q 'a has 0' \"$MATEX_PROOF/offer\" && exit 3"
    offered = OFFERED.format(f'"ranks": {ranks}, .*"reason_to_leave": "a has 0 of 2 slots left, c has 0 of 2')
    ends = [written(TRAIN, OFFERED.format("4"), come, "sleep 0.2", hurries, meanwhile, offered, left(ranks)), END]
    options = ["--hostfile", "hosts"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    assert starts[1] == ("--hostfile hosts -n 4 train.py" if ranks == 4 else "--host d:2 -n 2 train.py")


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "broken, told",
    [(offers, "No space left"), (answering, "No space left"), (None, "'utf-8' codec can't decode")],
)
def test_a_run_goes_on_where_nothing_can_be_offered(tmp_path, monkeypatch, capfd, broken, told):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    if broken is not None:
        monkeypatch.setattr(broken, "write_offer" if broken is offers else "ask_hosts", fail)
    spoil = "printf '\\377' > hosts" if broken is None else "echo c slots=2 >> hosts"
    ends = [written(TRAIN, spoil, "sleep 0.3", "exit 1" if broken is None else END), written("sleep 0.2", END)]
    options = ["--hostfile", "hosts"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0 and len(starts) == (2 if broken is None else 1)
    assert (
        said.count("--adapt: changes of the list of hosts are not offered from now on: ") == len(starts)
        and told in said
    )
    assert ("--adapt: the list of hosts is unchanged" in said) == (broken is None)


@pytest.mark.parametrize(
    "words, environment, fewer",
    [
        ("--strategy servers:4", "", "servers:2"),
        ("-x MATEX_STRATEGY=servers:4", "", "servers:2"),
        ("-x MATEX_STRATEGY", "servers:4", "servers:2"),
        ("--strategy servers:3:only", "", "servers:1:only"),
        ("--strategy servers:1:only", "", "servers:1:only"),
        ("--strategy servers:3", "sharded", "servers:2"),
        ("-x MATEX_STRATEGY=servers:2", "sharded", "servers:2"),
        ("", "sharded", "sharded"),
        ("", "", None),
    ],
)
def test_a_strategy_that_was_asked_for_stays_and_fewer_ranks_have_fewer_owners(
    tmp_path, monkeypatch, words, environment, fewer
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    if environment:
        monkeypatch.setenv("MATEX_STRATEGY", environment)
    seen = {}

    def note(run):
        command = run.make_command(Attempt(2, run.places.first.options))
        seen.update(may_choose=run.may_choose, line=command)
        return 0

    monkeypatch.setattr(restarts.RestartedRun, "run", note)
    for way in ("--adapt=ranks", "--restarts=2"):
        assert cli.main(["run", "-n", "4", way, *words.split(), "x.py"]) == 0
        assert seen["may_choose"] == (fewer is None)
        told = [word for word in seen["line"] if "MATEX_STRATEGY" in word]
        assert told == ([f"MATEX_STRATEGY={fewer}"] if fewer else []), way


def test_a_change_that_cannot_be_read_is_a_loss(tmp_path, monkeypatch, capfd):
    ends = [written(TRAIN, LEAVE.format("{")), END]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, follows=True)
    assert code == 0 and len(starts) == 2 and "restart 1 of 3" in said, said
