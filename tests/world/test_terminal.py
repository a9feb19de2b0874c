"""A silent rank keeps what it prints until all ranks have agreed, and prints it if the first one is lost."""

import ctypes
import os
import sys

import pytest

from matex_tf.world import terminal


def read_printed(work):
    """What `work` brings to standard output and errors, in a process of its own of which the pipes are these."""
    ends = [os.pipe(), os.pipe()]
    child = os.fork()
    if child == 0:
        try:
            for stream, (_, goes_in) in enumerate(ends, 1):
                os.dup2(goes_in, stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
            terminal.duplicate_streams()
            work()
            terminal.flush_text()
            os._exit(0)
        finally:
            os._exit(1)
    for _, goes_in in ends:
        os.close(goes_in)
    texts = []
    for comes_out, _ in ends:
        with os.fdopen(comes_out) as file:
            texts.append(file.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return texts


def test_what_was_printed_since_the_last_agreement_is_printed():
    def work():
        terminal.redirect_output(None, stores=True)
        print("agreed")
        print("agreed", file=sys.stderr)
        terminal.measure_text()
        terminal.forget_text()
        print("since then")  # in a buffer of Python, then in one of C
        terminal.flush_text()
        ctypes.PyDLL(None).puts(b"in C")
        os.write(2, b"an error\n")
        lengths = terminal.measure_text()
        print("of what is tried again")
        terminal.forget_after(lengths)
        kept = os.dup(1)  # as a script does that sends its output elsewhere for a while
        assert terminal.stores_text()
        terminal.print_text()
        assert not terminal.stores_text()
        print("at once", flush=True)
        os.dup2(kept, 1)
        print("still there")

    assert read_printed(work) == ["since then\nin C\nat once\nstill there\n", "an error\n"]


def test_a_rank_that_keeps_nothing_is_silent():
    def work():
        terminal.redirect_output(None, stores=False)
        print("silent")
        assert not terminal.stores_text()

    assert read_printed(work) == ["", ""]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_log_has_all_that_was_printed(keeps, tmp_path):
    def work():
        with open(tmp_path / "log", "w") as log:
            terminal.redirect_output(log.fileno(), keeps)
        print("agreed")
        terminal.measure_text()
        terminal.forget_text()
        print("since then")
        print("an error", file=sys.stderr, flush=True)
        lengths = terminal.measure_text()
        print("of what is tried again")
        terminal.forget_after(lengths)
        if keeps:
            terminal.print_text()
            print("at once")

    printed = "since then\nan error\n" if keeps else ""
    found = read_printed(work)
    assert sorted(found[0].splitlines()) == sorted(printed.splitlines() + ["at once"] * keeps)
    logged = ["agreed", "an error", "of what is tried again", "since then"]
    assert sorted((tmp_path / "log").read_text().splitlines()) == logged
