from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload._machine import out_of_memory_kills, usable_cpus, usable_memory_bytes

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "100000000 100000", "cpu.max": "max 100000"}, CPUS),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
            CPUS,
        ),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "90000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
        ("0::/../../a\n", {"a/cpu.max": "nonsense"}, CPUS),
        ("nonsense", {}, CPUS),
    ],
)
def test_the_quota_of_a_control_group_counts(
    tmp_path: Path, own: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, {"own": own, **{f"root/{name}": text for name, text in files.items()}})
    assert usable_cpus(str(tmp_path / "root"), str(tmp_path / "own")) == expected


def test_without_control_groups(tmp_path: Path) -> None:
    assert usable_cpus(str(tmp_path), str(tmp_path / "none")) == CPUS
    assert usable_memory_bytes(str(tmp_path), str(tmp_path / "none"), str(tmp_path / "no")) is None


MACHINE = "MemTotal: 100 kB\nMemAvailable:      90 kB\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "5"}, 90 * 1024),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "3000"}, 2000),
        (
            "0::/a\n",
            {
                "a/memory.max": "5000",
                "a/memory.current": "3000",
                "a/memory.stat": "anon 7\ninactive_file 600\n",
            },
            2600,
        ),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/memory.current": "9000", "a/b/memory.max": "8000"}, 0),
        (
            "4:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "5000", "memory/a/memory.usage_in_bytes": "4000"},
            1000,
        ),
    ],
)
def test_what_a_control_group_leaves_of_memory(
    tmp_path: Path, own: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, {"own": own, "meminfo": MACHINE})
    write(tmp_path, {f"root/{name}": text for name, text in files.items()})
    places = [str(tmp_path / name) for name in ("root", "own", "meminfo")]
    assert usable_memory_bytes(*places) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
        ("4:memory:/old\n0::/\n", {"memory/old/memory.oom_control": "under_oom 0\noom_kill 5\n"}, 5),
        ("0::/job\n", {}, None),
        ("", {"memory.events": "oom_kill 2\n"}, None),
    ],
)
def test_kills_for_memory_are_counted(
    tmp_path: Path, own: str, files: dict[str, str], expected: int | None
) -> None:
    write(tmp_path, {"own": own, **{f"root/{name}": text for name, text in files.items()}})
    assert out_of_memory_kills(str(tmp_path / "root"), str(tmp_path / "own")) == expected
