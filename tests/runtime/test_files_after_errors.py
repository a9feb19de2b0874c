"""After an error the output and the files of rank 0 are those that the script leaves alone."""

import textwrap

import h5py
import netCDF4
import pytest

import launch


def test_an_error_leaves_what_the_script_has_written_to_its_open_files(tmp_path):
    script = """
        import io, time, h5py, netCDF4, matex_tf
        import tensorflow as tf
        wrapper = io.TextIOWrapper(io.BytesIO())
        log, raw = open('log.csv', 'w'), open('raw', 'wb')
        print('epoch 1', file=log)
        raw.write(b'123')
        h5, nc = h5py.File('data.h5', 'w'), netCDF4.Dataset('data.nc', 'w')
        h5['x'] = list(range(5000))
        nc.createDimension('t', None)
        nc.createVariable('x', 'f8', ('t',))[:] = range(100)
        records, summaries = tf.io.TFRecordWriter('data.tfrecord'), tf.summary.create_file_writer('logs')
        records.write(b'text')
        with summaries.as_default(step=1):
            tf.summary.write('loss', 0.5)
        if matex_tf.rank() > 0:
            time.sleep(200)
        raise ValueError('after epoch 1')
    """
    assert "after epoch 1" in launch.run_failing(2, textwrap.dedent(script), cwd=tmp_path).output
    assert [(tmp_path / name).read_text() for name in ("log.csv", "raw")] == ["epoch 1\n", "123"]
    with h5py.File(tmp_path / "data.h5") as h5, netCDF4.Dataset(tmp_path / "data.nc") as nc:
        assert h5["x"][-1] == 4999 and nc["x"][-1] == 99
    assert b"text" in (tmp_path / "data.tfrecord").read_bytes()
    (events,) = (tmp_path / "logs").iterdir()
    assert b"loss" in events.read_bytes()


def test_open_files_do_not_prevent_the_end_after_an_error(tmp_path):
    """Nor do weak references to lost objects."""
    script = """
        import io, time, weakref, matex_tf, tensorflow
        class Broken(io.TextIOWrapper):
            def fileno(self):
                raise KeyError('no number')
        class Stuck(io.FileIO):
            def write(self, data):
                time.sleep(1000)
        lost = weakref.proxy(set())
        broken = Broken(io.BytesIO())
        stuck = io.BufferedWriter(Stuck('stuck', 'w'))
        stuck.write(b'1')
        raise ValueError('after epoch 1')
    """
    result = launch.run(2, textwrap.dedent(script), timeout=100, cwd=tmp_path)
    assert result.returncode == 1 and "after epoch 1" in result.output


FAILS = """
import os, signal, sys, threading, time
import tensorflow
import matex_tf
table, how = open(sys.argv[1], "w"), sys.argv[2]
table.write("header\\n")
matex_tf.barrier()
if how != "all" and matex_tf.rank() == 1:
    if how == "interrupt":
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    if how == "exit":
        sys.exit("one rank has failed")
    raise ValueError("one rank has failed")
if matex_tf.rank() == 0:
    time.sleep(300 if how == "interrupt" else 1.5)
if how != "all":
    matex_tf.barrier()
table.write("last line\\n")
print("printed before the error")
raise ValueError("all ranks have failed")
"""


def test_an_error_leaves_the_output_that_precedes_it_alone(tmp_path):
    """Rank 0 comes to the error last."""
    result = launch.run_failing(3, FAILS, tmp_path / "table", "all")
    assert result.stdout == "printed before the error\n"
    assert (tmp_path / "table").read_text() == "header\nlast line\n"
    assert "ValueError: all ranks have failed" in result.stderr


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_an_error_of_one_rank_leaves_what_rank_0_has_written(tmp_path, how):
    """Rank 0 waits for the failed rank, so the error ends the job although rank 0 never comes to it."""
    limits = {"MATEX_ABORT_SECONDS": "0", "MATEX_STALL_SECONDS": "600"}
    result = launch.run_failing(3, FAILS, tmp_path / "table", how, env=limits)
    assert (tmp_path / "table").read_text() == "header\n"
    assert "one rank has failed" in result.stderr


def test_an_interrupt_of_a_failed_rank_leaves_its_error(tmp_path):
    """The rank waits for rank 0 then."""
    result = launch.run_failing(2, FAILS, tmp_path / "table", "interrupt")
    assert "ValueError: one rank has failed" in result.stderr
