"""Prices of strategies follow from what is measured and counted; the number of owners from the model and memory."""

from dataclasses import replace
from math import ceil
from types import SimpleNamespace

import pytest
from planner_plans import a_plan

from matex_tf.costs import collectives, pieces
from matex_tf.costs.collectives import Link
from matex_tf.costs.pieces import Hosts
from matex_tf.planner import report
from matex_tf.planner.plan_file import ASSUMED, EXTRAPOLATED, MEASURED, PlanFileError, Size, Update
from matex_tf.planner.predict import Predictor
from matex_tf.planner.strategies import choose_strategy, estimate_strategies, find_price
from matex_tf.servers.pieces import owners

WEIGHTS, UPDATE = 4_040_000, 2e-3


def a_plan_with_an_update(update_seconds=UPDATE, **changed):
    """Adam's two slots for each weight, and 8 bytes of others; a rank updates all for 2 ms; no other collective."""
    steps = {size.ranks: (5e-3 + 6.4e-3 / size.ranks,) * 5 for size in a_plan().sizes}
    sizes = tuple(replace(one, update=update_seconds, steps=steps[one.ranks], at=()) for one in a_plan().sizes)
    update = Update(WEIGHTS, WEIGHTS, 2 * WEIGHTS, 8)
    return a_plan(**{"sizes": sizes, "update": update, "collectives": (), **changed})


def price(plan, ranks):
    """By name, what each strategy costs; and what cannot be had."""
    made, refused = estimate_strategies(Predictor(plan), ranks)
    return {one.strategy: one for one in made}, {one.strategy: one.why for one in refused}


def test_bytes_and_messages_of_pieces():
    byte, message = Link(0.0, 1.0), Link(1.0, 0.0)
    for ranks in (2, 3, 4, 16):
        added = collectives.ADDITION * (ranks - 1)
        assert pieces.estimate_gradient_pieces(ranks, ranks, 1.0, byte) == pytest.approx(2 + added / ranks)
        assert pieces.estimate_gradient_pieces(ranks, 1, 1.0, byte) == pytest.approx(1 + ranks + added)
        assert pieces.estimate_publishing_in_memory(ranks, ranks, 1.0, byte) == pytest.approx(1 - 1 / ranks)
        assert pieces.estimate_publishing_in_memory(ranks, 1, 1.0, byte) == 1
        large = 1 << 30
        for count, most in ((ranks, (ranks - 1) / ranks), (1, ranks - 1)):
            by_messages = pieces.estimate_pieces_by_messages(ranks, 1, count, large, byte, byte)
            assert by_messages == pytest.approx(most * large)
        assert pieces.estimate_pieces_by_messages(ranks, 1, ranks, 1e3, message, message) == ranks - 1
        most = ranks * pieces.WEIGHT_BYTES
        assert pieces.estimate_pieces_by_messages(ranks, 1, ranks, 5 * most, message, message, most) == 5 * (ranks - 1)
    # Two ranks of which one owns all: it adds up all of both, as each of two does in a sum.
    alike = [of(2, *one, 1e6, collectives.MEMORY) for of, one in (
        (pieces.estimate_gradient_pieces, (1,)), (collectives.estimate_shared_memory, ()))]  # fmt: skip
    assert alike[0] == alike[1]


@pytest.mark.parametrize("hosts", [1, 2, 5])
@pytest.mark.parametrize("per_host", [1, 2, 4, 16])
def test_on_equal_hosts_every_rank_owns_a_piece(hosts, per_host):
    nodes = [rank // per_host * per_host for rank in range(hosts * per_host)]
    for weights in (1e3, 1e6, 1e9):
        for slots in (0.0, weights, 2 * weights):
            for network in collectives.NETWORKS.values():
                known = Hosts(nodes, dict.fromkeys(nodes, 1000000000000.0), network)
                assert owners.choose_count(known, weights, slots)[0] == len(nodes)


@pytest.mark.parametrize("nodes", [[0, 0], [0, 0, 0], [0, 0, 2, 2]])
def test_pieces_are_compared_with_whole_updates(monkeypatch, nodes):
    """Each rank writes, reads and adds less on one host; between hosts an update is shared, and its result travels."""
    known = Hosts(nodes, {0: 1e12}, Link(0.0, 1e-9))
    monkeypatch.setattr(owners, "_known_hosts", [known])
    other, gain = owners.compare_strategies(1e8, 2e8)
    best = min(known.estimate_step(count, 1e8, 2e8) for count in range(1, len(nodes) + 1))
    assert other == "servers:auto" and gain == known.estimate_whole_step(1e8, 2e8) - best
    memory, ranks = collectives.MEMORY, len(nodes)
    update = pieces.estimate_update(1, 1e8, 2e8, memory)
    if len(set(nodes)) == 1:
        assert known.estimate_whole_step(1e8, 2e8) == collectives.estimate_shared_memory(ranks, 1e8, memory) + update
        assert gain > 0.4 * update
    else:
        half = pieces.estimate_pieces_by_messages(ranks, 2, ranks, 1e8, known.measured, memory)
        own = pieces.estimate_update(ranks, 1e8, 2e8, memory)
        assert best == 2 * half + own, "as many bytes between hosts as with allreduce"
        assert 0 < gain < update
    assert owners.compare_strategies(0, 0) == ("", 0.0), "nothing of the update can be in pieces"


@pytest.mark.parametrize("count", [2, 4, 16])
def test_the_link_that_a_run_has_kept_is_known_by_its_messages(count, monkeypatch):
    """Sums as they are made over a link of 10 us and 1 GB/s: of 1 KiB by doubling, of 1 MiB by halving."""
    link = Link(1e-5, 1e-9)
    small = collectives.estimate_recursive_doubling(count, 1 << 10, link)
    large = collectives.estimate_flat(count, 1, 1 << 20, link)
    monkeypatch.setattr(owners.world, "get_world", lambda: SimpleNamespace(nodes=list(range(count))))
    monkeypatch.setattr(owners.objects, "allgather", lambda value, what: [value] * count)
    monkeypatch.setattr(owners, "_known_hosts", [])
    owners.note_hosts((small, (large - small) / ((1 << 20) - (1 << 10))))
    assert tuple(owners._known_hosts[0].network) == pytest.approx(tuple(link), rel=0.2)


def test_where_memory_is_short_others_own_the_pieces():
    nodes = [0, 0, 2, 2]
    known = Hosts(nodes, {0: 1e9, 2: 1e6})
    count, why = owners.choose_count(known, 1e8, 2e8)
    assert count == 1 and "S = 1: the optimizer's 200 MB are in pieces on rank 0 of 4. " in why
    assert "with S = 4 it takes" in why and "but memory does not hold it" in why
    assert "3.13 GB/s between hosts, too" in why
    # What fits is taken, as many as can be: three pieces of 67 MB, one of them where there are 70.
    known = replace(known, free={0: 1e9, 2: 7e7}, measured=Link(1e-5, 1e-9))
    count, why = owners.choose_count(known, 1e8, 2e8)
    assert count == 3 and "1 GB/s between hosts, as measured" in why
    count, why = owners.choose_count(replace(known, free={0: 1e6, 2: 1e6}), 1e8, 2e8)
    assert count == 4 and "Memory holds the pieces with no S" in why


def test_a_step_in_pieces_lacks_the_others_parts_of_the_update():
    for ranks in (2, 4):
        free = a_plan_with_an_update(ranks_per_host=4, links=())
        found, refused = price(free, ranks)
        usual, sharded, one = (found[name].step for name in ("allreduce", "sharded", "servers:1"))
        assert refused == {}
        assert usual.compute - sharded.compute == pytest.approx(UPDATE * (1 - 1 / ranks))
        assert one.compute == usual.compute and one.exposed > sharded.exposed
        # Each moves two sets of gradients and what others own of one; of allreduce each moves three and more.
        memory = collectives.MEMORY
        wanted = pieces.estimate_gradient_pieces(ranks, ranks, WEIGHTS, memory)
        wanted += pieces.estimate_publishing_in_memory(ranks, ranks, WEIGHTS, memory)
        assert sharded.exposed == pytest.approx(wanted, rel=0.02) and sharded.exposed < usual.exposed
        held = {name: found[name].slots for name in ("allreduce", "sharded", "servers:1")}
        assert held == {"allreduce": 8 + 2 * WEIGHTS, "sharded": 8 + 2 * WEIGHTS / ranks, "servers:1": 8 + 2 * WEIGHTS}
        assert found["allreduce"].memory - found["sharded"].memory == 2 * WEIGHTS * (1 - 1 / ranks)


def test_no_step_computes_less_than_nothing():
    """Computation that is extrapolated may be below the update, which is measured by itself."""
    plan = a_plan_with_an_update()
    steep = tuple(replace(one, steps=(1e-4 * one.rows - 3e-4,) * 5) for one in plan.sizes)
    for ranks in (16, 64):
        found, _ = price(replace(plan, sizes=steep), ranks)
        assert all(one.step.compute >= 0 and one.step.waiting >= 0 for one in found.values()), ranks


def test_a_step_without_the_updates_of_all_optimizers_sends_its_own_gradients():
    """A generator that is updated in some steps only: its gradients are among those of the updates, not of the step."""
    own, more = (a_plan_with_an_update(update=Update(size, WEIGHTS, WEIGHTS), overlaps=False, network="0:1e9")
                 for size in (WEIGHTS, 5 * WEIGHTS))  # fmt: skip
    steps = [price(plan, 16)[0]["sharded"].step for plan in (own, more)]
    assert steps[0].exposed == steps[1].exposed


def test_steps_between_two_averages_have_no_collectives():
    sizes = tuple(replace(one, at=(1e-4,)) for one in a_plan_with_an_update().sizes)
    found, _ = price(a_plan_with_an_update(collectives=a_plan().collectives, sizes=sizes), 16)
    assert found["local:8"].step.small == 0 < found["allreduce"].step.small


def test_clipped_gradients_are_summed_whole():
    clipped = a_plan_with_an_update(update=Update(0, WEIGHTS, 2 * WEIGHTS))
    usual = price(clipped, 2)[0]["allreduce"].step
    assert price(clipped, 2)[0]["sharded"].step.exposed > usual.exposed
    assert price(a_plan_with_an_update(), 2)[0]["sharded"].step.exposed < usual.exposed


def test_between_hosts_weights_come_in_the_next_forward_pass():
    def exposed(network, **changed):
        found, _ = price(a_plan_with_an_update(network=network, **changed), 16)
        return found["allreduce"].step.exposed, found["sharded"].step.exposed

    # At once, the same bytes travel; overlapped, the first gradient is ready when all weights have come.
    usual, sharded = exposed("0:1e9", overlaps=False)
    assert sharded == pytest.approx(usual, rel=0.05)
    usual, overlapped = exposed("0:1e9")
    assert overlapped < usual and overlapped < 0.6 * sharded
    slow_usual, slow = exposed("0:1e8")
    assert overlapped < slow < slow_usual
    # The forward pass alone is not long enough for them, but with what gradients leave of the backward pass it is.
    early = a_plan_with_an_update(network="0:4e9")
    early = replace(early, sizes=tuple(replace(one, ready=(2e-4, 5e-3)) for one in early.sizes))
    made = Predictor(early)
    step = price(early, 16)[0]["sharded"].step
    assert WEIGHTS / 4e9 > 2e-4
    assert step.exposed == pytest.approx(made.predict_step(16, 0.5).exposed + made.links.estimate_small(16, 0))
    found, refused = price(a_plan_with_an_update(network="0:1e9"), 16)
    usual = found["allreduce"].step
    assert "several hosts" in refused["async"] and "servers:8" in found and found["servers:8"].slots == 8 + WEIGHTS / 4
    assert found["local:8"].step.exposed < usual.exposed


def test_ranks_that_train_whole_batches_take_turns_at_them():
    plan = a_plan_with_an_update()
    found, _ = price(plan, 2)
    assert found["async"].step.step == pytest.approx((5e-3 + 6.4e-3) / 2)
    assert found["async"].step.mark == EXTRAPOLATED
    whole = Size(1, 2, 64, (0.02,), (0.02,), (), 0, 10**9)
    beside, alone = (price(replace(plan, whole=replace(whole, copies=count)), 2)[0]["async"] for count in (2, 1))
    assert (beside.step.step, beside.memory, beside.step.mark) == (0.01, 10**9, MEASURED)
    assert alone.step.mark == EXTRAPOLATED
    # Some steps are longer: who computes slices waits for the slowest rank.
    uneven = tuple(replace(size, steps=(*size.steps, 2 * size.steps[0])) for size in plan.sizes)
    late, _ = price(replace(plan, sizes=uneven), 2)
    assert late["async"].step.waiting == 0 < late["sharded"].step.waiting
    assert (found["async"].step.rows, found["async"].slots) == (64, 8 + 2 * WEIGHTS)
    assert {name for name, one in found.items() if one.is_statistical} == {"async", "local:8"}


def test_figures_are_marked():
    found, _ = price(a_plan_with_an_update(), 2)
    marks = {name: (one.step.mark, one.memory_mark) for name, one in found.items()}
    assert marks["allreduce"] == (MEASURED, MEASURED) and marks["sharded"] == (EXTRAPOLATED, EXTRAPOLATED)
    assert price(a_plan_with_an_update(0.0), 2)[0]["sharded"].step.mark == ASSUMED


def test_the_strategy_that_is_set_is_priced_too():
    made = Predictor(a_plan_with_an_update(ranks_per_host=8))
    names = [
        {one.strategy for one in estimate_strategies(made, 8, asked)[0]} for asked in ("", "servers:3", "local:50")
    ]
    assert names[1] - names[0] == {"servers:3"} and names[2] - names[0] == {"local:50"}
    assert find_price(made, 8, "servers:auto").strategy == find_price(made, 8, "sharded").strategy == "sharded"
    assert find_price(made, 8, "servers:3").slots == 8 + 2 * WEIGHTS / 3
    with pytest.raises(PlanFileError, match="no optimizer of Keras updates weights"):
        find_price(Predictor(a_plan()), 2, "sharded")
    with pytest.raises(PlanFileError, match="servers:9: there are 8 ranks"):
        find_price(made, 8, "servers:9")
    with pytest.raises(PlanFileError, match="servers:8:only: there are 8 ranks"):
        find_price(made, 8, "servers:8:only")


@pytest.mark.parametrize("scaling, batches, slice_seconds", [("strong", 1, 6.4e-3 / 6), ("weak", 6, 6.4e-3)])
def test_ranks_that_only_serve_leave_the_others_larger_slices(scaling, batches, slice_seconds):
    """Of 8 ranks 2 serve: 6 compute a sixth of the batch each, or whole ones, and all wait for half an update."""
    plan = a_plan_with_an_update(ranks_per_host=8, links=(), overlaps=False)
    if scaling == "weak":
        sizes = tuple(replace(one, rows=64, steps=(5e-3 + 6.4e-3,) * 5) for one in plan.sizes)
        plan = replace(plan, scaling="weak", sizes=sizes)
    made = Predictor(plan)
    found, usual = find_price(made, 8, "servers:2:only"), find_price(made, 8, "servers:2")
    rounded = 1e-4 * (ceil(64 / 6) - 64 / 6) if scaling == "strong" else 0.0
    assert found.step.compute == pytest.approx(5e-3 + slice_seconds + rounded - UPDATE / 2)
    assert found.step.exposed == usual.step.exposed, "they take part in sums, and need the new weights"
    assert (found.strategy, found.slots) == ("servers:2:only", usual.slots) == ("servers:2:only", 8 + WEIGHTS)
    assert found.step.rows_a_second == pytest.approx(64 * batches / found.step.step)
    alone, _ = made.compute.estimate_alone(8)
    assert found.step.efficiency == pytest.approx(alone * batches / (8 * found.step.step))
    # Who has most of all is a server, which has half of the optimizer's variables and a row, or trains.
    assert found.memory == a_plan().sizes[0].peak_bytes - WEIGHTS


def test_what_cannot_be_had_is_said():
    no_update = price(a_plan(), 2)
    assert "no optimizer of Keras" in no_update[1]["sharded, servers:S"] and "sharded" not in no_update[0]
    nothing = Update(why_not="its update has a norm", not_async="only fit", not_local="only fit")
    found, refused = price(a_plan(update=nothing), 2)
    assert list(found) == ["allreduce"]
    assert refused == {"sharded, servers:S": "its update has a norm", "async": "only fit", "local:H": "only fit"}
    assert choose_strategy(list(found.values())) == (
        "allreduce", "allreduce: no other strategy with the result of the script alone is available"
    )  # fmt: skip


def test_the_recommendation_has_the_result_of_the_script_alone():
    prices, _ = estimate_strategies(Predictor(a_plan_with_an_update()), 2)
    best, why = choose_strategy(prices)
    assert best == "sharded" and min(prices, key=lambda one: one.step.step).strategy == "async"
    assert "in place of 8.1" in why and "Faster, but statistical: async (0." in why
    # An update that takes no time is not worth pieces, but for memory.
    plan = a_plan_with_an_update(1e-9, update=Update(0, WEIGHTS, 10**8))
    prices, _ = estimate_strategies(Predictor(plan), 2)
    best, why = choose_strategy(prices)
    assert best == "allreduce" and "sharded" in why and "50.0 MB" in why
    bare = replace(plan, update=Update(0, WEIGHTS))
    assert choose_strategy(estimate_strategies(Predictor(bare), 2)[0])[1].startswith("allreduce: ")
    assert "no variables to shard" in choose_strategy(estimate_strategies(Predictor(bare), 2)[0])[1]
    best, why = choose_strategy(prices, memory=1.2 * 1.5e8)
    assert best == "sharded" and "does not fit 0.17 GiB" in why
    best, why = choose_strategy(prices, memory=1e6)
    assert best == "" and "no strategy fits" in why


def test_the_model_beside_what_was_measured():
    """benchmarks/strategies.py on idle cores: 84.7 ms with allreduce, 65.0 ms (0.77) with sharded; assumed here."""
    size = Size(2, 2, 32, (1.0,), (1.0,), (), 0, 0)
    weights = 39_890_280
    plan = a_plan_with_an_update(
        sizes=(size,), links=(), gradients=(replace(a_plan().gradients[0], bytes=weights),),
        update=Update(weights, weights, 2 * weights),
    )  # fmt: skip
    sums = price(plan, 2)[0]["allreduce"].step.exposed
    update = pieces.estimate_update(1, weights, 2 * weights, collectives.MEMORY)
    measured = replace(size, steps=(84.7e-3 - sums,), ready=(84.7e-3 - sums,), update=update)
    found, _ = price(replace(plan, sizes=(measured,)), 2)
    assert found["allreduce"].step.step == pytest.approx(84.7e-3)
    assert found["sharded"].step.step / 84.7e-3 == pytest.approx(0.77, abs=0.06)


def test_what_is_printed_and_written():
    prices, refused = estimate_strategies(Predictor(a_plan_with_an_update()), 4)
    assert report.format_strategies(prices).row_count == len(prices) > 3
    found = report.make_strategies_json(prices, refused)
    assert [one["strategy"] for one in found["prices"]] == [one.strategy for one in prices]
    assert found["ranks"] == 4 and found["best"] in found["reason"] and set(found["cannot"]) == {"async"}
    assert {one["strategy"]: one["statistical"] for one in found["prices"]}["local:8"]
