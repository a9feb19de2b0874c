"""Links between ranks that are started; their measurement is what the ranks print last."""

import json
import shlex

from planner_plans import a_plan

from matex_tf.launch.planning import ranks

MINE = a_plan().links[0]


def launch(count, target, options, environment):
    """In place of ranks a program that prints a measurement as they would: of so many hosts as are named apart."""
    names = {part.partition(":")[0] for part in options[1].split(",")} if options else {"here"}
    if "nowhere" in names:
        return ["sh", "-c", "echo no such host >&2; exit 1"]
    said = json.dumps({**vars(MINE), "ranks": count, "hosts": len(names - {"alias"})})
    return ["sh", "-c", f"echo {shlex.quote(said)}"]


def test_what_is_measured_within_and_between_hosts(capsys, monkeypatch):
    monkeypatch.setattr(ranks.placement, "list_cores", lambda: [(0,), (1,)])
    found = ranks.measure_links(4, ("a", "b", "c"), launch)
    assert [(link.ranks, link.hosts) for link in found] == [(2, 1), (2, 2), (8, 2)]
    assert [link.ranks for link in ranks.measure_links(4, (), launch)] == [2]
    assert ranks.measure_links(1, (), launch) == ()


def test_what_cannot_be_measured_is_said(capsys, monkeypatch):
    monkeypatch.setattr(ranks.placement, "list_cores", lambda: [(0,)])
    assert ranks.measure_links(1, ("a", "nowhere"), launch) == ()
    assert "no such host" in capsys.readouterr().err
    assert ranks.measure_links(1, ("a", "alias"), launch) == ()
    assert "these names are one host's" in capsys.readouterr().err


def test_ranks_are_started_on_the_hosts_that_are_named():
    assert ranks.place_on_hosts(("a", "b"), 4) == ["--host", "a:4,b:4"] and ranks.place_on_hosts((), 4) == []
