"""Rank 0's news of its files, as other ranks read them."""

import os
import threading

from matex_tf.io import journal


def test_several_threads_read_all_news_once(tmp_path):
    path = tmp_path / "ledger"
    path.touch()
    here, there = journal.Ledger(str(path)), journal.Ledger(str(path))
    count, failed, over = 3000, [], threading.Event()

    def read():
        try:
            while not over.is_set():
                there.known()
                there.names_before("/a folder")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(count):
        here._write("=", 0, f"/a folder/{number}")
    over.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert there.known() == os.path.getsize(path)
    assert len(there._before) == count
