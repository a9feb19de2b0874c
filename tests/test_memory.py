"""How much memory a process may still take."""

from matex_tf import memory

GROUP, OLD = "/sys/fs/cgroup/job/memory", "/sys/fs/cgroup/memory/job"


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


def test_a_step_of_a_job_has_what_the_group_above_leaves_to_all_steps(monkeypatch):
    """Version 1, where a group's own figures leave out those of the groups below it, and its total ones do not."""
    told = {
        "/proc/meminfo": ["MemAvailable: 9000 kB\n"],
        "/proc/self/cgroup": ["5:cpu,cpuacct:/other\n", "4:memory:/job/step\n", "0::/\n"],
        f"{OLD}/step/memory.limit_in_bytes": ["9223372036854771712\n"],
        f"{OLD}/step/memory.usage_in_bytes": ["1000000\n"],
        f"{OLD}/memory.limit_in_bytes": ["5000000\n"],
        f"{OLD}/memory.usage_in_bytes": ["4000000\n"],
        f"{OLD}/memory.stat": ["inactive_file 0\n", "total_inactive_file 700000\n", "total_active_file 100000\n"],
    }
    monkeypatch.setattr(memory, "_read_lines", lambda path: told.get(path, []))
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: [memory.resource.RLIM_INFINITY])
    assert memory.measure_free() == 1800000
