"""Which change of ranks or of the strategy is proposed, by what a step takes, and when it is worth a new start."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from matex_tf import settings
from matex_tf.adapt import changes, leaving, offers, slice_adapter
from matex_tf.adapt.offers import Offer
from matex_tf.launch import rank_ends, run_end
from matex_tf.resilience import fit_state, run_state
from matex_tf.runtime import rank_records
from matex_tf.servers.pieces import slots, update_costs

HOSTS = ["a", "b", "c", "d"]


def proposed(ranks, rows, seconds, least=1, other=("", 0.0), **more):
    slow = changes.find_slow(rows, seconds, least)
    return changes.propose_change(Offer(ranks, 6.0, **more), HOSTS[: len(rows)], rows, seconds, slow, other)


def test_ranks_are_added_for_what_a_step_then_takes_less():
    found = proposed(3, [64, 64], [0.030, 0.030])
    assert found.change.ranks == 3 and found.change.dropped_host == "" and found.gain == pytest.approx(0.010)
    assert found.change.what == "3 ranks in place of 2" and found.change.why == "a step is to take 10.0 ms less"
    assert not found.is_worth(1200, 6.0) and found.is_worth(1201, 6.0)
    assert proposed(2, [64, 64], [0.030, 0.030]) is None


def test_ranks_that_only_serve_are_more_ranks_and_compute_nothing():
    found = changes.propose_change(Offer(4, 6.0), HOSTS, [64, 64], [0.030, 0.030], servers=1)
    assert found.change.ranks == 4 and found.gain == pytest.approx(0.010)
    assert found.change.what == "4 ranks in place of 3"
    assert changes.propose_change(Offer(3, 6.0), HOSTS, [64, 64], [0.030, 0.030], servers=1) is None
    slow = changes.Slow(1, 0.030, 500.0)
    found = changes.propose_change(Offer(3, 6.0), HOSTS, [127, 1], [0.010, 0.040], slow, servers=1)
    assert found.change.ranks == 2 and found.change.dropped_host == "b"


def test_a_rank_is_dropped_for_whose_least_part_all_wait():
    # The others compute its row, too: 127 rows in 10 ms are 12,700 a second.
    found = proposed(3, [127, 1, 127], [0.010, 0.040, 0.010])
    assert found.change.ranks == 2 and found.change.dropped_host == "b"
    assert found.gain == pytest.approx(0.040 - 255 / 25400)
    assert "without rank 1 (b), which takes 508.0 times as long for a row" in found.change.why
    assert proposed(3, [127, 2, 127], [0.010, 0.040, 0.010]) is None, "it may have fewer"
    assert proposed(3, [127, 2, 127], [0.010, 0.040, 0.010], least=2) is not None
    assert proposed(3, [127, 1, 127], [0.010, 0.009, 0.010]) is None, "nobody waits for it"
    assert proposed(3, [3, 3, 3], [0.010, 0.010, 0.020], least=3) is None, "it is hardly slower"
    assert proposed(1, [1], [0.040]) is None
    assert proposed(3, [127, 1, 127], [0.010, 0.040, 0.010], kept_hosts=["a", "b"]) is None, "that was undone"


def test_a_rank_is_dropped_only_if_windows_in_a_row_find_the_same():
    one, other = changes.Slow(1, 0.030, 500.0), changes.Slow(2, 0.030, 500.0)
    for between in (None, other):
        streak = changes.Streak()
        last = [streak.confirm(one) for _ in range(7)] + [streak.confirm(between)]
        assert not any(last + [streak.confirm(one) for _ in range(7)]), "one window found something else"
        assert streak.confirm(one) is one and streak.confirm(one) is one


def test_a_strategy_is_chosen_by_the_optimizer_that_is_trained(monkeypatch):
    class Optimizer:
        pass

    class Variable:
        def __init__(self, optimizer, size):
            self.slot, self.size = slots.Slot(self, optimizer), size

    folds = [Optimizer() for _ in range(5)]
    monkeypatch.setattr(slots, "find_slot", lambda one: one.slot)
    monkeypatch.setattr(update_costs, "measure_bytes", lambda found: sum(one.size for one in found))
    for number, optimizer in enumerate(folds):
        held = [Variable(optimizer, 100 * number)]
        holding = SimpleNamespace(list_variables=lambda held=held: held)
        own = SimpleNamespace(graph=SimpleNamespace(variables=held))
        update_costs.note_step(
            SimpleNamespace(
                trained=held, traced=own, program=None, copies=SimpleNamespace(pieces=holding), why_whole=""
            )
        )
    assert update_costs.count_bytes(folds[3]) == (300, 300)
    assert update_costs.count_bytes(SimpleNamespace(inner_optimizer=folds[2])) == (200, 200)
    assert update_costs.count_bytes(Optimizer()) == update_costs.count_bytes(None) == (0, 0)
    assert update_costs.count_bytes(folds) == (0, 0), "a script's model may have a list of optimizers"
    update_costs.note_step(SimpleNamespace(trained=held, traced=own, why_whole="its copy cannot be made"))
    assert update_costs.count_bytes(folds[4]) == (0, 0), "every rank computes this step by itself"


def test_a_change_is_undone_where_a_step_takes_longer_by_more_than_chance():
    offer = Offer(3, 6.0, step_seconds_before=0.040, undo_text="2 ranks in place of 3 again")
    found = changes.propose_undoing(offer, 3, 0.044)
    assert found.gain == pytest.approx(0.004) and found.change.undoes and found.change.what == offer.undo_text
    assert found.change.why == "a step takes 44.0 ms, and took 40.0 ms before"
    assert not [took for took in (0.042, 0.040, 0.030) if changes.propose_undoing(offer, 3, took)]
    assert changes.propose_undoing(Offer(3, 6.0), 3, 0.044) is None, "there was no change"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(settings.get_settings(), "proof", str(tmp_path))
    monkeypatch.setattr(rank_records, "_folder", str(tmp_path))
    monkeypatch.setattr(rank_records, "_leaves", False)
    return tmp_path


def leave(failed, said):
    run = object.__new__(run_state.Run)
    run.path, run.writer = "state", SimpleNamespace(flush=lambda: None, failed=failed)
    run.leave_run(None, "epoch 2", lambda: said.append("left"), "2 ranks in place of 3: b has 0 of 1 places left")


def test_ranks_that_leave_give_no_proof_of_a_good_end(folder):
    said = []
    with pytest.raises(SystemExit) as ended:
        leave(None, said)
    rank_records.note_end(set())
    assert ended.value.code == 0 and said == ["left"]
    assert not run_end.read_end(folder).proves_success


def test_of_ranks_that_have_left_none_ended_without_a_word(folder):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child, rank_ends.RankEnds(folder) as ends:
        said = {"process": child.pid, "namespace": rank_records.read_namespace()}
        (folder / "rank-0").write_text(json.dumps(said))
        ends.look_for_ranks()
        child.communicate()
        assert ends.find_first() == rank_records.Record(**said)
        rank_records.note_leaving()
        rank_records.note_end(set())
        assert ends.find_first() is None


def test_ranks_that_cannot_keep_their_state_stay_and_say_so(folder, capfd):
    said = []
    leave("OSError: no room", said)
    rank_records.note_end(set())
    assert not said and run_end.read_end(folder).proves_success
    assert "b has 0 of 1 places left: the state could not be saved (OSError: no room)" in capfd.readouterr().err


def test_a_change_tells_that_it_had_to_be(folder):
    fit = SimpleNamespace(may_change=lambda: True, ask_change=lambda text, mark: mark("epoch 2", 0.0))
    made = leaving.Leaving()
    made._fit = fit

    def leave_for(offer):
        return made.decide([leaving.Report(offer, 10**6, (0, 0))], 0.1, [16], [0.1], 1)

    assert leave_for(Offer(3, 6.0, reason_to_leave="b has 0 of 1 places left"))
    found = offers.read_change(folder)
    assert found.is_forced and found.what == "3 ranks in place of 1" and found.saved_at == "epoch 2"
    assert not leave_for(Offer(3, 6.0))


@pytest.mark.parametrize(
    "goes_on, seconds, windows, text",
    [
        (True, 0.050, 16, "as it was: a step takes 50.0 ms, and took 40.0 ms before"),
        (True, 0.041, 16, "2 ranks in place of 1: a step is to take 20.5 ms less"),
        (False, 0.050, 8, "2 ranks in place of 1: a step is to take 25.0 ms less"),  # other steps than before
    ],
)
def test_a_change_is_judged_once_and_before_another(folder, monkeypatch, goes_on, seconds, windows, text):
    def ask_change(why, mark):
        asked.append(why)
        mark("epoch 2", 0.0)

    asked = []
    fit = SimpleNamespace(
        resumption=SimpleNamespace(is_resumed=goes_on),
        may_change=lambda: True,
        count_left=lambda: 10**6,
        model=None,
        ask_change=ask_change,
    )
    monkeypatch.setattr(leaving, "find_fit", lambda: fit)
    monkeypatch.setattr(offers, "read_offer", lambda: Offer(2, 6.0, step_seconds_before=0.040, undo_text="as it was"))
    adapter = slice_adapter.SliceAdapter(SimpleNamespace())
    for window in range(windows + 1):  # the first is not counted
        assert not asked, window
        took = seconds if window > 8 or not goes_on else 1.0  # until shares have settled
        adapter._steps = [(took, took)] * 10
        adapter._end_window(16)
    assert asked == [text]
    found = offers.read_change(folder)
    assert found.undoes == text.startswith("as it was") and found.step_seconds_before == seconds


def test_what_cannot_be_read_is_no_offer(folder):
    offers.write_offer(Offer(3, 6.0), folder)
    assert offers.read_offer() == Offer(3, 6.0)
    (folder / "offer").write_text('{"ranks": 3')
    assert offers.read_offer() is None
    (folder / "offer").unlink()
    (folder / "offer").mkdir()
    assert offers.read_offer() is None


def test_a_step_counts_as_training_unless_it_is_thrown_away(folder):
    ended = {"ended": True, "epoch": 2, "step": 0, "epochs": 2}
    kept = iter([ended, {**ended, "ended": False}, None])
    run = SimpleNamespace(
        fits=0, epochs=0, has_trained=False, load_state=lambda fit: next(kept), may_save=lambda fit: False
    )
    for trains in (False, False, True):
        fit_state.Fit(run, SimpleNamespace(stop_training=False)).note_trained(None)
        assert offers.has_trained(folder) == trains


def test_a_strategy_is_changed_where_a_step_is_predicted_to_be_shorter_by_more_than_chance():
    found = proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", 0.004))
    assert found.change.strategy == "servers:auto" and found.change.ranks == 2
    assert proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", 0.002)) is None
    assert proposed(2, [64, 64], [0.050, 0.060], other=("servers:auto", -0.004)) is None
    assert proposed(4, [64, 64], [0.050, 0.060], other=("servers:auto", 0.004)).change.strategy is None, "gains more"
