"""How much memory a process may still take."""

import sys

import control_group
import pytest

import launch
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
    told["/proc/self/statm"] = ["200000 9 9 9 0 100 0\n"]  # files that are mapped are no data
    limits = {memory.resource.RLIMIT_AS: memory.resource.RLIM_INFINITY, memory.resource.RLIMIT_DATA: 2000000}
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: [limits[which]])
    assert memory.measure_free() == 2000000 - 100 * memory.os.sysconf("SC_PAGE_SIZE")


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


TREES = {
    "version 2": (
        "0::/job/step\n", ("memory.max", "memory.current", "inactive_file 250\nactive_file 50\n"), "job", "job/step"
    ),
    "version 1": (
        "4:memory:/job/step\n",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file 250\ntotal_active_file 50\n"),
        "memory/job", "memory/job/step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", TREES)
def test_limits_are_read_off_a_tree_of_files(version, tmp_path, monkeypatch):
    mine, (most, taken, kept), *groups = TREES[version]
    for path, text in {"proc/meminfo": "MemAvailable: 9000 kB\n", "proc/self/cgroup": mine}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    above, step = (tmp_path / "sys/fs/cgroup" / group for group in groups)
    step.mkdir(parents=True)
    limits = {above: (5000, 4000), step: ("max" if version == "version 2" else 2**63 - 4096, 3000)}
    for group, numbers in limits.items():
        for name, number in zip((most, taken), numbers):
            (group / name).write_text(f"{number}\n")
        (group / "memory.stat").write_text(kept)
    read = memory._read_lines
    monkeypatch.setattr(memory, "_read_lines", lambda path: read(f"{tmp_path}{path}"))
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: [memory.resource.RLIM_INFINITY])
    assert memory.measure_free() == 5000 - 4000 + 300
    (step / most).write_text("3500\n")
    assert memory.measure_free(ranks=2) == (3500 - 3000 + 300) // 2


READS = """
from matex_tf import memory
before = memory.measure_free()
taken = bytearray(200 << 20)
print(before, memory.measure_free())
"""


def test_the_limit_of_a_real_group_is_what_its_processes_are_left():
    limit = 600 << 20
    with control_group.make_group(limit) as group:
        if group is None:
            pytest.skip(control_group.NEEDED)
        words = group.wrap([sys.executable, "-c", READS])
        before, after = map(int, launch.execute(words, launch.environment(), 120).check().stdout.split())
        assert limit / 2 < before < limit
        assert 180 << 20 < before - after < 260 << 20
