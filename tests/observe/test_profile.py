"""The table of a profile: its figures from the engine's totals, and who is waited for."""

from __future__ import annotations

import pytest

from matex_tf.observe import profile
from matex_tf.ops.records import Totals

MS = 10**6
LINK = (10e-6, 1e-9, False)  # 10 us and 1 GB/s


def of_rank(compute=6, meet=1, steps=100, place="optimizer.apply: w and 1 more", **changes):
    """100 updates of 1 MiB in two transfers of 2 ms in all and 0.5 ms of copies, nothing of it hidden."""
    totals = {
        "updates": 100, "bytes": 100 << 20, "transfers": 200, "transfer": 200 * MS, "copy": 50 * MS,
        "exposed": 250 * MS, "exposed_wait": 0, "collectives": 0,
        "steps": steps, "compute": steps * compute * MS, "meet": steps * meet * MS,
    }  # fmt: skip
    return Totals(place=place, **{**totals, **changes})


def lines(*ranks, hosts=None):
    text = profile.format_table(
        [one if isinstance(one, list) else [one] for one in ranks], hosts or ["a"] * len(ranks), LINK
    )
    return text.splitlines()


def columns(line):
    return line.rsplit("more", 1)[1].split()


def test_all_is_exposed():
    found = lines(of_rank(), of_rank())
    assert found[0].startswith("matex_tf: profile of 2 ranks on 1 host;")
    # 2 ms for what the link does in 2 x 10 us + 1.05 ms
    assert columns(found[2]) == "100 9.50 6.00 1.00 2.50 0.00 0.00 1.00 0.52 53%".split()
    assert "the ranks are balanced" in found[3]
    assert found[4].endswith("10.0 us a transfer and 1.00 GB/s")


def test_most_is_hidden():
    mine = of_rank(exposed=50 * MS, exposed_wait=30 * MS, collectives=10 * MS)
    assert columns(lines(mine, mine)[2]) == "100 7.90 6.00 1.30 0.50 0.10 2.00 1.00 0.52 53%".split()


def test_new_weights():
    mine = of_rank(pulled=200 << 20, pull=400 * MS)
    assert "new weights: 2.00 MiB in 4.00 ms (0.52 GB/s), while the next step computes" in lines(mine, mine)


def test_fewer_steps_than_updates():
    """Steps at the beginning of an epoch are no steps, but their updates are updates."""
    mine = of_rank(steps=50)
    assert columns(lines(mine, mine)[2])[:5] == "50 9.50 6.00 1.00 2.50".split()


def test_the_slowest_rank_is_named():
    found = lines(of_rank(5, 2), of_rank(7, 0), of_rank(5, 2), hosts=["a", "b", "c"])
    assert found[0].startswith("matex_tf: profile of 3 ranks on 3 hosts;")
    assert (
        "rank 1 (b) is waited for: the others wait 2.00 ms more in each step than it does, 21% of the step" in found[3]
    )
    assert found[4:7] == [
        "  rank 1 (b): compute 7.00 ms, waiting 0.00 ms",
        "  rank 0 (a): compute 5.00 ms, waiting 2.00 ms",
        "  rank 2 (c): compute 5.00 ms, waiting 2.00 ms",
    ]


def test_many_ranks():
    found = lines(*(of_rank(meet=0 if rank == 77 else 1) for rank in range(100)))
    assert found[4].startswith("  rank 77 ") and len(found) == 14 and found[12] == "  and 92 more, which wait longer"


def test_places_have_lines_of_their_own():
    found = lines(*[[of_rank(), of_rank(place="tape: v and 3 more", steps=40)]] * 2)
    assert [line.split(":")[0] for line in found[2:4]] == ["optimizer.apply", "tape"]
    assert [columns(line)[0] for line in found[2:4]] == ["100", "40"]


@pytest.mark.parametrize("ranks", [([], []), (of_rank(), of_rank(steps=0)), (of_rank(), [])])
def test_too_few_steps(ranks):
    (line,) = lines(*ranks)
    assert "too few training steps" in line
