"""What a program of the corpus (`sameness/cases`) asks of the run in which it is, alone or under ranks."""

from __future__ import annotations

import sys

ALONE: dict = {}
"""Under ranks: the results that the program has left alone, by their names."""
EXPECTATIONS: list[str] = []
"""What was expected of this rank and is not so."""


def get_rank() -> int:
    """The rank; 0 where the program runs alone."""
    return sys.modules["matex_tf"].rank() if has_ranks() else 0


def get_size() -> int:
    """The number of ranks."""
    return sys.modules["matex_tf"].size() if has_ranks() else 1


def has_ranks() -> bool:
    return "matex_tf" in sys.modules


def is_due(name: str, only_of_all: set[str]) -> bool:
    """Whether a case is part of this run: those `only_of_all` are not part of the usual one."""
    return is_all() or name not in only_of_all


def is_all() -> bool:
    return "all" in sys.argv[1:]


def expect(condition: object, text: str) -> None:
    """Under ranks: notes `text` as a fault of the program unless `condition` holds."""
    if has_ranks() and not condition:
        EXPECTATIONS.append(text)


def expect_shared(name: str, function: object) -> None:
    """Notes a fault unless ranks share each call that was made of a `tf.function`."""
    if has_ranks():
        import plans

        expect(plans.is_shared(function), f"{name}: ranks do not share the step")


def list_notes() -> list[str]:
    """What the library has told about the program until now."""
    return sorted(getattr(sys.modules.get("matex_tf.runtime.notes"), "_printed", []))
