"""Prints docs/papers.md, the published numbers of five papers next to calculated ones:
`python docs/figures/papers_page.py > docs/papers.md`.
"""

from __future__ import annotations

import dataclasses
import sys

from papers import comparisons

_HEAD = """# What five papers measured, and what models make of it

The tables compare the numbers of five papers with models. The models that the planner uses are functions in
`matex_tf/planner/papers/`, the others in `docs/figures/papers/`. `python docs/figures/papers_page.py` generates this
page, and a test compares the two.

- calculated: a formula of the paper with the values of the paper.
- fitted: a constant, or a form, was chosen to give the number.
- predicted: the model gives the number, which was not used for the model.
- not explained: the models do not give the number, or the paper does not give their inputs.

Only the texts of the papers were available, so numbers shown only in plots are missing. Differences refer to the
printed numbers; a line says so if it excludes their rounding.
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
    for paper, list_figures in comparisons.PAPERS.items():
        parts.append(f"\n## {_TITLES[paper]}\n\n{_COLUMNS}")
        parts.extend(f"| {' | '.join(dataclasses.astuple(figure))} |\n" for figure in list_figures())
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(format_page())
