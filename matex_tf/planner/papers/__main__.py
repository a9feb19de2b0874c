"""Prints docs/papers.md: `python -m matex_tf.planner.papers > docs/papers.md`."""

from __future__ import annotations

import dataclasses
import sys

from matex_tf.planner.papers.figures import comparisons

_HEAD = """# What five papers measured, and what models make of it

The planner rests on models of five papers. Each is a function in `matex_tf/planner/papers/`, named by its equation, and
says where it does not hold. Here are the papers' numbers beside ours. `python -m matex_tf.planner.papers` prints this
page, and a test compares the two.

- calculated: a formula of the paper, with what the paper gives.
- fitted: a constant, or a form, was chosen so that the number comes out.
- predicted: it comes out of the model and was not used for it.
- not explained: the models do not give it, or the paper does not give what they need.

The papers were there as text. Numbers that only a plot shows are missing. Differences are to the numbers as printed;
where rounding is left out of one, the line says so.
"""

_COLUMNS = "| where | what | theirs | ours | how | remark |\n|---|---|---|---|---|---|\n"

_TITLES = {
    "XAI": "XAI: how many parameter servers (Salama et al., DATA 2019)",
    "HTC": "HTC: memory, mini-batch, GPUs and servers (Zou et al., 2017)",
    "iBatch": "iBatch: pulls behind the forward pass (Wang, Pi and Zhou, AAAI 2019)",
    "MaTEx-TensorFlow": "MaTEx-TensorFlow: strong scaling (Vishnu et al., 2017)",
    "GaDei": "GaDei: bandwidth of a parameter server (Zhang et al., ICDM 2017)",
}


def format_page() -> str:
    """The text of docs/papers.md."""
    parts = [_HEAD]
    for paper, figures_of in comparisons.PAPERS.items():
        parts.append(f"\n## {_TITLES[paper]}\n\n{_COLUMNS}")
        parts.extend(f"| {' | '.join(dataclasses.astuple(one))} |\n" for one in figures_of())
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(format_page())
