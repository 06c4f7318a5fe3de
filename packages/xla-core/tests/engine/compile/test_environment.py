"""What programs depend on besides themselves: equal for a target and for the process that it stands for, different for another build."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xla_core.engine.compile import environment
from xla_core.engine.placement.target import Target


def test_other_processors_have_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {environment._processor()}
    for sets in ({"sse4_2", "avx"}, {"sse4_2", "avx", "avx512f"}, set()):
        monkeypatch.setattr(environment, "instruction_sets", lambda sets=sets: frozenset(sets))
        described.add(environment._processor())
    assert len(described) == 4


def test_another_build_of_the_native_library_has_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    assert environment._native_libraries("cpu")
    for build in ("one", "other"):
        site = tmp_path / build
        (site / "jaxlib-0.10.2.dist-info").mkdir(parents=True)
        (site / "libjax_common.so").write_bytes(build.encode())
        (site / "jaxlib-0.10.2.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: jaxlib\nVersion: 0.10.2\n", encoding="utf-8"
        )
        for digest in ("", f"sha256={build}"):  # not recorded, and recorded
            (site / "jaxlib-0.10.2.dist-info" / "RECORD").write_text(f"libjax_common.so,{digest},3\n", encoding="utf-8")
            with monkeypatch.context() as patched:
                patched.syspath_prepend(site)
                environment._native_libraries.cache_clear()
                digests.append(tuple(environment._native_libraries("cpu")))
    environment._native_libraries.cache_clear()
    assert len(set(digests)) == 4


def target(platform: str, kind: str, version: str, count: int, attached: bool, in_job: int = 0) -> Target:
    """Devices as a client of this version shows them. in_job: how many the client knows, with those of other processes."""
    client = SimpleNamespace(platform_version=version, device_count=lambda: in_job)
    devices: Any = (SimpleNamespace(platform=platform, device_kind=kind, client=client),) * count
    return Target("devices", devices, (count,), None, attached)


def test_a_target_has_the_environment_of_the_processes_it_stands_for() -> None:
    """The versions are those that a topology and a client say; each of four processes addresses four chips of sixteen."""
    version = "PJRT C API\nTFRT TPU v5 lite\nBuilt on Jun 17 2026"
    planned, slice_of = target("tpu", "TPU v5 lite", version, 16, attached=False), target("tpu", "TPU v5 lite", version, 4, True, in_job=16)
    assert environment.environment(planned) == environment.environment(slice_of)
    kind = "NVIDIA H100 80GB HBM3"
    planned, there = target("gpu", kind, f"PJRT C API\n{kind}", 1, False), target("gpu", kind, "PJRT C API\ncuda 13000", 1, True, in_job=1)
    assert environment.environment(planned) == environment.environment(there)


@pytest.mark.parametrize(
    ("platform", "change", "said"),
    [
        (
            "tpu",
            {"version": "another"},
            "version of the platform is one there and another here",
        ),
        ("tpu", {"kind": "TPU v6 lite"}, "kind of device is TPU v5 lite there and TPU v6 lite here"),
        ("tpu", {"count": 4}, "number of devices is 8 there and 4 here"),
        ("gpu", {"kind": "NVIDIA H200"}, "kind of device is TPU v5 lite there and NVIDIA H200 here"),
    ],
)
def test_differences_are_said(platform: str, change: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {"kind": "TPU v5 lite", "version": "one", "count": 8}
    there = environment.environment(target(platform, attached=False, **settings))
    assert environment.differences(there, there) == []
    assert environment.differences(there, environment.environment(target(platform, attached=False, **{**settings, **change}))) == [said]


def test_flags_of_the_compiler_count_for_its_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [target(platform, "kind", "version", 1, attached=False) for platform in ("tpu", "gpu")]
    before = [environment.environment(each) for each in devices]
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_flag=1")
    after = [environment.environment(each) for each in devices]
    assert environment.differences(before[0], after[0]) == ["LIBTPU_INIT_ARGS is unset there and --xla_tpu_flag=1 here"]
    assert before[1] == after[1]
