"""Steps on rows of which each rank holds its own give what the script alone gives on the batches put together."""

import numpy as np
import pytest

import launch

CASES = launch.HERE / "steps" / "own_rows_cases.py"
COUNTS = {2: [8, 21], 3: [8, 21, 0]}


@pytest.fixture(
    scope="module",
    params=[
        (3, "0"),
        *(pytest.param(case, marks=pytest.mark.more) for case in ((2, "0"), (2, "1"), (3, "1"))),
    ],
    ids=lambda one: f"{one[0]} ranks, Keras {'2' if one[1] == '1' else '3'}",
)
def found(request, tmp_path_factory):
    ranks, legacy = request.param
    folder = tmp_path_factory.mktemp("found")
    env = {**launch.ALL_FILES, "TF_USE_LEGACY_KERAS": legacy}
    launch.run(1, CASES, ranks, folder, env=env, timeout=200).check()
    launch.run(ranks, CASES, ranks, folder, env=env, timeout=300).check()
    alone, *each = (dict(np.load(folder / f"{name}.npz")) for name in ("alone", *range(ranks)))
    return alone, each


def test_losses_and_weights_are_those_of_the_script_alone(found):
    alone, each = found
    for name, expected in alone.items():
        if name.startswith("predict"):
            continue
        for mine in each:
            assert mine[name].shape == expected.shape, name
            scale = max(np.abs(expected).max(), 1e-3)
            assert np.abs(mine[name] - expected).max() <= 1e-10 * scale, name


@pytest.mark.parametrize("name", ["predict", "predict dataset"])
def test_a_rank_predicts_its_own_rows(found, name):
    alone, each = found
    assert [len(mine[name]) for mine in each] == COUNTS[len(each)]
    np.testing.assert_allclose(np.concatenate([mine[name] for mine in each]), alone[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name, words",
    [
        ("single rows", "put .batch(...) at its end"),
        ("numbers", "has no rows"),
        ("other rows", "different numbers of rows"),
        ("other sizes", "have different sizes"),
        ("number of rows", "UnsupportedError"),
        ("compiled", "UnsupportedError"),
        ("constant", "UnsupportedError"),
        ("one shot", "made within a function"),
        ("within", "made within a function"),
        ("initializer", "initializes an iterator"),
        ("reduce", "UnsupportedError"),
    ],
)
def test_what_ranks_cannot_put_together_is_an_error_on_all(found, name, words):
    for mine in found[1]:
        assert words in str(mine[f"wrong: {name}"])
