"""What ranks tell MPI before it starts."""

import os
from unittest import mock

from matex_tf.world import world

CORES = str(os.cpu_count())


def started(prefix, here, everywhere, **given):
    """The variables that ranks of an Open MPI at `prefix` add or change, with `given` ones of the user's."""
    variables = {
        "HOME": str(prefix),
        "OMPI_LIBDIR_LOC": str(prefix / "lib"),
        "OMPI_COMM_WORLD_LOCAL_SIZE": here,
        "OMPI_COMM_WORLD_SIZE": everywhere,
        **given,
    }
    with mock.patch.dict(os.environ, variables, clear=True):
        world._set_open_mpi_defaults()
        return {name for name, value in os.environ.items() if variables.get(name) != value}


def test_ranks_on_one_host_do_not_start_libfabric(tmp_path):
    assert "OMPI_MCA_btl" in started(tmp_path, "2", "2")
    assert "OMPI_MCA_btl" not in started(tmp_path, "2", "4")
    for name in ("OMPI_MCA_pml", "OMPI_MCA_btl"):
        assert "OMPI_MCA_btl" not in started(tmp_path, "2", "2", **{name: "tcp"})
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "openmpi-mca-params.conf").write_text("btl = self,tcp\n")
    assert "OMPI_MCA_btl" not in started(tmp_path, "2", "2")


def test_ranks_that_fill_the_cores_yield_them(tmp_path):
    assert "OMPI_MCA_mpi_yield_when_idle" in started(tmp_path, CORES, "1024")
    assert "OMPI_MCA_mpi_yield_when_idle" not in started(tmp_path, "1", "1024") or CORES == "1"
    with_own = started(tmp_path, CORES, "1024", OMPI_MCA_mpi_yield_when_idle="0")
    assert "OMPI_MCA_mpi_yield_when_idle" not in with_own
