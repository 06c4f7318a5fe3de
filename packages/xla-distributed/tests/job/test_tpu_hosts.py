"""Hosts of TPU slices, under GKE, on Cloud TPU VMs and under Ray: real processes on the CPU, or what the environment says alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xla_distributed.errors import JobError
from xla_distributed.job import cluster, hardware

PROGRAMS = Path(__file__).parents[1] / "programs"
Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_one(tmp_path: Path, launch: Starter) -> Starter:
    """`start_one(program, VARIABLE="value")`: a process on the CPU with these variables."""

    def run(program: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "XLA_COLLECTIVE_TIMEOUT_SECONDS": "100", **variables}
        return launch([sys.executable, str(PROGRAMS / f"{program}.py"), str(tmp_path)], environment)

    return run


def reports(folder: Path, processes: list[subprocess.Popen[str]], size: int) -> list[Any]:
    """The reports of all replicas, once these processes have ended well."""
    for process in processes:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]


def test_each_host_of_a_slice_starts_its_replicas_and_all_are_one_job(start_one: Starter, free_port: int, tmp_path: Path) -> None:
    """Their process group of torch's has a store that keeps nothing."""
    variables = {"TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1", "MASTER_PORT": str(free_port), "CPU_NUM_DEVICES": "2"}
    variables |= {"MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0", "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1"}
    hosts = [start_one("slice_host", TPU_WORKER_ID=str(host), XLA_USE_DUMMY_STORE="1", **variables) for host in range(2)]
    for rank, report in enumerate(reports(tmp_path, hosts, 4)):
        assert report["index"] == rank % 2 and report["local"] == [rank % 2, 2, rank // 2]
        assert report["world"] == [rank, 4, 4] and report["sum"] == 10.0 and report["all"] == [0, 1, 2, 3]


def test_workers_of_ray_train_have_a_group_of_gloo_already(start_one: Starter, free_port: int, tmp_path: Path) -> None:
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    workers = [start_one("after_gloo", RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", **variables) for rank in range(2)]
    found = reports(tmp_path, workers, 2)
    assert [report["place"] for report in found] == [[0, 0], [1, 1]]
    assert [(report["sum"], report["gloo"]) for report in found] == [(3.0, 4.0)] * 2


def test_the_host_of_device_0_in_spmd_mode(start_one: Starter, free_port: int, tmp_path: Path) -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "XLA_USE_SPMD": "1", "CPU_NUM_DEVICES": "2"}
    hosts = [start_one("spmd_hosts", RANK=str(rank), **variables) for rank in range(2)]
    assert reports(tmp_path, hosts, 2) == [["host-0", 0], ["host-0", 1]]


PLACE = """
import os
import torch_xla.runtime as xr
from xla_distributed.job import cluster, launch
print(xr.process_count(), xr.process_index(), os.environ["MASTER_ADDR"], cluster.hosts(), launch._is_replica())
"""


def test_a_pod_of_gke(launch: Starter) -> None:
    """With jax told that there is a TPU; nothing starts it here."""
    tpu = {"PJRT_DEVICE": "TPU", "JAX_FORCE_TPU_INIT": "1", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "true"}
    place = {"TPU_WORKER_ID": "3", "TPU_WORKER_HOSTNAMES": "127.0.0.1,host-1,host-2,host-3", "MEGASCALE_NUM_SLICES": "2"}
    slices = {"MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1:8080"}
    process = launch([sys.executable, "-c", PLACE], {**os.environ, **tpu, **place, **slices})
    out, err = process.communicate(timeout=100)
    assert out == "8 7 127.0.0.1 Hosts(index=7, count=8) False\n", err


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The attributes of a fake metadata server, the one of jax's and of ours."""
    attributes: dict[str, str] = {}

    class Attributes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = attributes.get(self.path.rpartition("/")[2])
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Attributes) as server:
        for name in ("GCE_METADATA_IP", "GCE_METADATA_HOST"):
            monkeypatch.setenv(name, f"127.0.0.1:{server.server_port}")
        monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield attributes
        server.shutdown()
        thread.join()


def get(url: str, headers: dict[str, str], timeout: float) -> SimpleNamespace:
    """What jax uses of the package `requests`, which comes with jax[tpu] only."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            return SimpleNamespace(status_code=response.status, text=response.read().decode())
    except urllib.error.HTTPError as error:
        return SimpleNamespace(status_code=error.code, text="")


@pytest.fixture
def tpu_vm(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The metadata of this process's host, which is host 1 of a v4-16."""
    monkeypatch.setitem(sys.modules, "requests", SimpleNamespace(get=get))  # type: ignore[arg-type]
    monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm", True)
    for module in (cluster, hardware):
        monkeypatch.setattr(module, "device_kind", lambda: "TPU")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    metadata |= {
        "accelerator-type": "v4-16",
        "agent-worker-number": "1",
        "worker-network-endpoints": "a:1:127.0.0.1,b:2:127.0.0.2",
        "tpu-env": "HOST_BOUNDS: '1,1,2'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\n",
    }
    return metadata


def test_a_cloud_tpu_vm(tpu_vm: dict[str, str]) -> None:
    assert cluster.adopt.__wrapped__() == cluster.Hosts(1, 2)
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")] == ["1", "2", "127.0.0.1"]


def test_a_cloud_tpu_vm_by_itself(tpu_vm: dict[str, str]) -> None:
    tpu_vm |= {"agent-worker-number": "0", "worker-network-endpoints": "a:1:127.0.0.1"}
    assert cluster.adopt.__wrapped__() is None
    assert not os.environ["RANK"]


def test_what_jax_needs_and_is_not_installed_is_said(tpu_vm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_is_there", lambda name: name == "Cloud TPU")
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(JobError, match=r"Cloud TPU has started this process, but does not say.*requests"):
        cluster.adopt.__wrapped__()


def test_each_replica_has_its_chip(tpu_vm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID", "TPU_PROCESS_PORT")
    for name in (*names, "TPU_PROCESS_ADDRESSES"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    try:
        hardware.restrict(0, 1)
        assert dict(os.environ) == before, "a process for all chips is as libtpu finds it"
        with pytest.raises(ValueError, match="3 processes on each of 2 TPU hosts"):
            hardware.restrict(0, 3)
        hardware.restrict(2, 4)
        assert [os.environ[name] for name in names] == ["2,2,2", "1,1,1", "2", "6", "8478"]
    finally:
        os.environ.clear()
        os.environ.update(before)
