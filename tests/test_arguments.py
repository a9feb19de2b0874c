"""Lists of words at the edge: a text in place of a list is an error, never a list of its letters."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest

import matex_tf
from matex_tf import arguments
from matex_tf.deploy.kubernetes import Kubernetes
from matex_tf.deploy.python import launch as launch_script
from matex_tf.deploy.slurm import Slurm
from matex_tf.tune.python import tune as tune_script


def test_words_are_texts_numbers_and_paths():
    given = ["--epochs", 3, Path("a", "b"), np.float32(0.5), 1e-3, ""]
    assert arguments.check_words("launch", "args", given) == ["--epochs", "3", "a/b", "0.5", "0.001", ""]
    assert arguments.check_words("launch", "args", ()) == []


@pytest.mark.parametrize(
    "given", ["--epochs 3", "", b"-e 3", None, {"--epochs": 3}, {"-e"}, 3, ["-e", None], ["-e", b"3"], [["-e", 3]]]
)
def test_all_else_is_a_type_error(given):
    with pytest.raises(TypeError, match="launch: expected args to be a list of texts, numbers or paths"):
        arguments.check_words("launch", "args", given)


def test_the_list_to_write_instead_is_shown():
    with pytest.raises(TypeError, match=r"\['--epochs', '3'\]"):
        arguments.check_words("launch", "args", "--epochs 3")


PUBLIC = {
    "launch": (launch_script, lambda **given: matex_tf.launch(__file__, ranks=2, **given)),
    "tune": (tune_script, lambda **given: matex_tf.tune(__file__, **{"search": {"--lr": [1, 2]}, **given})),
    "Slurm": (Slurm, matex_tf.Slurm),
    "Kubernetes": (Kubernetes, matex_tf.Kubernetes),
}
ONE_WORD = {("launch", "run"), *((kind, name) for kind in ("Slurm", "Kubernetes") for name in ("setup", "run", "env"))}
ONE_WORD |= {("Slurm", "sbatch")}
"""Where a text is one item of the list, as documented."""


def list_lists():
    """Of each public function the parameters that take a list."""
    for name, (function, _) in PUBLIC.items():
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
        for parameter, hint in hints.items():
            if any(get_origin(one) is Sequence for one in (hint, *get_args(hint))):
                yield name, parameter


def test_all_lists_are_known():
    assert set(list_lists()) == ONE_WORD - {("Slurm", "env")} | {
        ("launch", "args"),
        ("tune", "args"),
        ("tune", "rungs"),
    }


@pytest.mark.parametrize(("function", "parameter"), list_lists())
def test_a_text_is_no_list_of_letters(function, parameter):
    if (function, parameter) not in ONE_WORD:
        with pytest.raises(TypeError, match=f"{function}: expected {parameter}"):
            PUBLIC[function][1](**{parameter: "12 3"})
    elif function != "launch":
        word = {"env": "A=1", "sbatch": "--hint=compute_bound"}.get(parameter, "12")
        assert getattr(PUBLIC[function][1](**{parameter: word}), parameter) == (word,)
