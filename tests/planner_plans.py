"""A plan to test with, of a script that nobody ran."""

from matex_tf.planner import plan_file
from matex_tf.planner.plan_file import Collective, Gradient, LinkMeasurement, Plan, Size


def a_plan(**changed) -> Plan:
    """Two gradients, one collective; 1 ms and 0.1 ms a row, of 64 rows."""
    sizes = [
        Size(
            n,
            min(n, 2),
            64 // n,
            (1e-3 + 6.4e-3 / n,) * 5,
            (5e-4 + 3.2e-3 / n, 1e-3 + 6.4e-3 / n),
            (1e-4,),
            10**8,
            2 * 10**8,
        )
        for n in (1, 4, 16)
    ]
    link = LinkMeasurement(plan_file.ONE_HOST, 2, 1, plan_file.LINK_BYTES, *[(1e-5, 2e-5, 5e-5, 3e-4, 6e-3)] * 2, 1e-10)
    given = {
        "script": ("train.py",), "host": "here", "cores": 2, "ranks_per_host": 2, "scaling": "strong",
        "overlaps": True, "rows": 64, "epoch_steps": 10, "network": "ethernet25",
        "gradients": (Gradient("b", 40_000), Gradient("a", 4_000_000)),
        "collectives": (Collective("collective", "moments", 256),), "sizes": tuple(sizes), "links": (link,),
    }  # fmt: skip
    return Plan(**{**given, **changed})
