"""The tests notice what is wrong: of each fault that `faults.py` lists, the test that it names fails."""

import faults
import pytest


@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_fault_is_noticed(name, tmp_path):
    assert faults.is_noticed(faults.FAULTS[name], tmp_path)


def test_each_fault_names_a_test_and_a_place():
    for name, fault in faults.FAULTS.items():
        assert (faults.ROOT / fault.test.partition("::")[0]).exists(), name
        assert (faults.ROOT / fault.file).read_text().count(fault.right) == 1, name
