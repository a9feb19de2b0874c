"""How much memory a process may still take."""

from matex_tf import memory

GROUP = "/sys/fs/cgroup/job/memory"


def test_what_a_job_keeps_of_files_counts_as_free_and_ranks_share_what_is_left(monkeypatch):
    told = {
        "/proc/meminfo": ["MemAvailable: 9000 kB\n"],
        "/proc/self/cgroup": ["0::/job\n"],
        f"{GROUP}.max": ["5000000\n"],
        f"{GROUP}.current": ["4000000\n"],
        f"{GROUP}.stat": ["anon 2500000\n", "inactive_file 1000000\n", "active_file 500000\n"],
    }
    monkeypatch.setattr(memory, "_read_lines", lambda path: told.get(path, []))
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: [memory.resource.RLIM_INFINITY])
    assert (memory.measure_free(), memory.measure_free(ranks=2)) == (2500000, 1250000)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: [2000000])
    assert (memory.measure_free(), memory.measure_free(ranks=2)) == (2000000, 1250000)
