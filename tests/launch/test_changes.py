"""`matex run --adapt=ranks`: what ranks are offered as hosts come and go, and how the run goes on as they choose."""

from __future__ import annotations

import pytest
from fake_mpirun import started

from matex_tf.launch import process
from matex_tf.launch.hosts import watch

OFFERED = "until grep -q '{}' \"$MATEX_PROOF/offer\" 2> /dev/null; do sleep 0.02; done"
LEAVE = (
    'printf \'{{"ranks": {0}, "what": "{1}", "why": "{2}", "where": "epoch 2", "without": "{3}", "seconds": 0.5}}\' '
    '> "$MATEX_PROOF/part"; mv "$MATEX_PROOF/part" "$MATEX_PROOF/change"; touch "$MATEX_PROOF/ended"'
)
TRAIN = 'touch "$MATEX_PROOF/training"'
END = f'{TRAIN}; sleep 0.1; touch "$MATEX_PROOF/ended"'


def written(*words):
    return "; ".join(words)


def left(ranks, what="other ranks", why="it gains", without=""):
    return LEAVE.format(ranks, what, why, without)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(process, "_TICK", 0.02)
    monkeypatch.setattr(watch, "EVERY", 0.02)


def test_ranks_come_and_go_with_the_places_of_a_host_file(tmp_path, monkeypatch, capfd):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    ends = [
        written(TRAIN, "echo localhost slots=3 > hosts", OFFERED.format('ranks": 6, .*"must": ""'), left(6, "6 for 4")),
        written(TRAIN, "echo localhost slots=1 > hosts", OFFERED.format('"must": "localhost has 1 of 3'), left(2)),
        END,
    ]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=["--hostfile", "hosts"], follows=True)
    assert code == 0 and starts == [f"--hostfile hosts -n {ranks} train.py" for ranks in (4, 6, 2)]
    first, second = said.splitlines()
    assert first.startswith("matex: --adapt: 6 for 4 from epoch 2 on: it gains. The change took 0.")
    assert second.startswith("matex: --adapt: other ranks from epoch 2 on: it gains. The change took 0.")


def test_a_host_that_answers_again_is_offered_and_one_of_which_nothing_comes_is_left_again(
    tmp_path, monkeypatch, capfd
):
    ends = [
        "exit 1",  # b is lost
        written(TRAIN, OFFERED.format('"ranks": 2,'), "touch back", OFFERED.format('"ranks": 4,'), left(4)),
        "exit 1",
        written(TRAIN, "sleep 0.2", f'[ -e "$MATEX_PROOF/offer" ] && exit 1; {END}'),
    ]
    monkeypatch.setattr(watch, "AGAIN", 0.05)
    options = ["--host", "a:2,b:2"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    assert starts == [f"--host {where} train.py" for where in ("a:2,b:2 -n 4", "a:2 -n 2", "a:2,b:2 -n 4", "a:2 -n 2")]
    assert "no answer from b; going on with 2 ranks on a" in said
    assert "--adapt: other ranks came to no step (a rank or a host was lost (exit code 1)); going on as before" in said


def test_a_rank_that_was_dropped_stays_away(tmp_path, monkeypatch, capfd):
    ends = [
        written(TRAIN, OFFERED.format('"ranks": 4,'), left(3, without="a.cluster")),
        written(TRAIN, OFFERED.format('"ranks": 3, .*"must": ""'), END),
    ]
    (tmp_path / "back").touch()
    options = ["--host", "a:2,b:2"]
    code, said, starts = started(tmp_path, monkeypatch, capfd, ends, options=options, follows=True)
    assert code == 0, said
    assert starts == ["--host a:2,b:2 -n 4 train.py", "--host a:1,b:2 -n 3 train.py"]


def test_who_ends_the_run_for_good_comes_before_a_change(tmp_path, monkeypatch, capfd):
    ends = [written(TRAIN, 'touch "$MATEX_PROOF/ask-again"', left(2)), END]
    code, _, starts = started(tmp_path, monkeypatch, capfd, ends, follows=True)
    assert code == 75 and len(starts) == 1
