"""TPU hosts without a TPU: a metadata server, PCI devices and environments as the documented slices of Google Cloud have them."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from torch_xla._internal import tpu
from torch_xla.core import xla_env_vars as xenv
from torch_xla.experimental import plugins
from xla_distributed import settings
from xla_distributed.job.tpu import gce_metadata
from xla_distributed.job.tpu import host as hosts


class Attributes(BaseHTTPRequestHandler):
    """The attributes of a VM, of the server's dictionary; `flaky` fails once."""

    def do_GET(self) -> None:
        server: Metadata = self.server  # type: ignore[assignment]
        server.asked.append(self.path)
        name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
        code = 403 if self.headers["Metadata-Flavor"] != "Google" else 200 if name in server.attributes else 404
        if name == "flaky" and server.asked.count(self.path) == 1:
            code = 503
        self.send_response(code)
        self.end_headers()
        self.wfile.write(server.attributes.get(name, "").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


class Metadata(ThreadingHTTPServer):
    """A metadata server on a free port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Attributes)
        self.attributes: dict[str, str] = {}
        self.asked: list[str] = []


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host without chips whose environment says nothing; what a test sets is gone after it."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU_", "ACCELERATOR_TYPE", "WORKER_ID"))]:
        del os.environ[name]
    monkeypatch.setattr(hosts, "PCI_DEVICES", tmp_path)
    gce_metadata._fetch.cache_clear()
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """The metadata server of this host."""
    monkeypatch.setattr(gce_metadata, "_PAUSE_SECONDS", 0)
    with Metadata() as server:
        os.environ["GCE_METADATA_HOST"] = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def plug_in(folder: Path, chips: int, kind: str) -> None:
    """Chips on the PCI bus, beside another device of Google's and another maker's of the same number."""
    devices = [("0x1ae0", kind)] * chips + [("0x1ae0", "0x0042"), ("0x8086", kind)]
    for number, (vendor, device) in enumerate(devices):
        place = folder / f"0000:00:{number:02x}.0"
        place.mkdir()
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "device").write_text(f"{device}\n")


@dataclass(frozen=True)
class Slice:
    """A slice as Google Cloud documents it. chips: on each host; grid: all chips of the slice along its axes."""

    kind: str
    pci: str
    version: int
    chips: int
    hosts: int
    grid: str
    devices: int
    host_bounds: str
    chips_per_host: str = "2,2,1"


SLICES = [
    Slice("v2-8", "0x0027", 2, 4, 1, "2,2,1", 8, "1,1,1"),
    Slice("v3-8", "0x0027", 3, 4, 1, "2,2,1", 8, "1,1,1"),
    Slice("v3-32", "0x0027", 3, 4, 4, "4,4,1", 32, "2,2,1"),
    Slice("v4-8", "0x005e", 4, 4, 1, "2,2,1", 4, "1,1,1"),
    Slice("v4-16", "0x005e", 4, 4, 2, "2,2,2", 8, "1,1,2"),
    Slice("v5litepod-4", "0x0063", 5, 4, 1, "2,2,1", 4, "1,1,1"),
    Slice("v5litepod-16", "0x0063", 5, 4, 4, "4,4,1", 16, "2,2,1"),
    Slice("v5p-8", "0x0062", 5, 4, 1, "2,2,1", 4, "1,1,1"),
    Slice("v6e-8", "0x006f", 6, 8, 1, "2,4,1", 8, "1,1,1", "2,4,1"),
    Slice("v6e-16", "0x006f", 6, 4, 4, "4,4,1", 16, "2,2,1"),
]


def by_metadata(one: Slice, server: Metadata) -> None:
    """A Cloud TPU VM, the last of its slice."""
    server.attributes |= {
        "accelerator-type": one.kind,
        "agent-worker-number": str(one.hosts - 1),
        "worker-network-endpoints": ",".join(f"worker-{number}:{number}:10.0.0.{number}" for number in range(one.hosts)),
        "tpu-env": f"ACCELERATOR_TYPE: '{one.kind}'\nCHIPS_PER_HOST_BOUNDS: '{one.chips_per_host}'\nHOST_BOUNDS: '{one.host_bounds}'\n"
        f"WORKER_ID: '{one.hosts - 1}'\nZONE: 'us-central2-b'\n",
    }


def by_name(one: Slice, server: Metadata) -> None:
    """A Cloud TPU VM whose `tpu-env` says nothing of bounds: the name of the slice has to do."""
    by_metadata(one, server)
    server.attributes["tpu-env"] = "ZONE: 'us-central2-b'"


def by_environment(one: Slice, server: Metadata) -> None:
    """A pod of GKE, where no metadata server answers for the slice."""
    os.environ["TPU_SKIP_MDS_QUERY"] = "true"
    os.environ["TPU_ACCELERATOR_TYPE"] = one.kind
    os.environ["TPU_WORKER_ID"] = str(one.hosts - 1)
    os.environ["TPU_WORKER_HOSTNAMES"] = ",".join(f"10.0.0.{number}" for number in range(one.hosts))
    os.environ["TPU_HOST_BOUNDS"] = one.host_bounds
    os.environ["TPU_CHIPS_PER_HOST_BOUNDS"] = one.chips_per_host


@pytest.mark.parametrize("source", [by_metadata, by_name, by_environment])
@pytest.mark.parametrize("one", SLICES, ids=lambda one: one.kind)
def test_a_documented_slice(one: Slice, source: Callable[[Slice, Metadata], None], metadata: Metadata, tmp_path: Path) -> None:
    plug_in(tmp_path, one.chips, one.pci)
    source(one, metadata)
    last, addresses = one.hosts - 1, [f"10.0.0.{number}" for number in range(one.hosts)] if one.hosts > 1 else ["localhost"]
    assert (tpu.get_tpu_type(), tpu.version(), tpu.worker_id(), tpu.num_tpu_workers()) == (one.kind, one.version, last, one.hosts)
    assert tpu.get_worker_ips() == addresses and tpu.discover_master_worker_ip() == addresses[0]
    assert (tpu.num_available_chips(), tpu.num_expected_global_devices()) == (one.chips, one.devices)
    assert tpu.num_available_devices() == one.chips * tpu.num_logical_cores_per_chip() == one.devices // one.hosts
    assert tpu._ACCELERATOR_TYPE_TO_HOST_BOUNDS[one.kind] == one.host_bounds
    tpu.configure_topology(one.chips - 1, one.chips)
    ports = range(8476, 8476 + one.chips)
    wanted = {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": one.grid,
        "TPU_VISIBLE_CHIPS": str(one.chips - 1),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{address}:{port}" for address in addresses for port in ports),
        "TPU_PROCESS_PORT": str(ports[-1]),
        "CLOUD_TPU_TASK_ID": str(one.chips * one.hosts - 1),
    }
    assert {name: os.environ[name] for name in wanted} == wanted
    assert tpu.task_id() == one.chips * one.hosts - 1 == tpu.process_bounds_size() - 1  # type: ignore[operator]
    assert (tpu.num_local_processes(), tpu.num_expected_global_devices()) == (one.chips, one.devices), "also once it is configured"
    assert bool(metadata.asked) == (source is not by_environment)


def test_a_slice_of_another_shape_is_as_its_metadata_say(metadata: Metadata) -> None:
    """v4-64 may be 2x2x8 by request, beside 2x4x4; of v3 the bounds in metadata are not asked."""
    by_metadata(Slice("v4-64", "0x005e", 4, 4, 8, "2,2,8", 32, "1,1,8"), metadata)
    assert next(hosts.possible_bounds()).by_chip() == (2, 2, 8)
    assert list(hosts.possible_bounds())[1].by_chip() == (2, 4, 4)
    gce_metadata._fetch.cache_clear()
    by_metadata(Slice("v3-32", "0x0027", 3, 4, 4, "", 32, "1,1,1"), metadata)
    assert next(hosts.possible_bounds()).by_chip() == (4, 4, 1)


def test_the_metadata_server_is_asked_once_for_each_attribute_and_again_when_it_fails(metadata: Metadata) -> None:
    metadata.attributes |= {"flaky": "there", "accelerator-type": "v4-8\n"}
    assert [tpu._get_metadata("flaky"), tpu._get_metadata("flaky"), tpu.get_tpu_type()] == ["there", "there", "v4-8"]
    assert [path.rpartition("/")[2] for path in metadata.asked] == ["flaky", "flaky", "accelerator-type"]
    assert tpu._GCE_METADATA_ROOT_URL == "http://metadata.google.internal/computeMetadata/v1"


def test_what_the_metadata_server_does_not_say(metadata: Metadata) -> None:
    with pytest.raises(RuntimeError, match=r"worker-network-endpoints.*404.*TPU_SKIP_MDS_QUERY=1"):
        tpu.get_worker_ips()
    assert len(metadata.asked) == 1, "an attribute that is not there is not asked for again"
    metadata.attributes["worker-network-endpoints"] = "a:b"
    with pytest.raises(RuntimeError, match="name:number:address"):
        tpu.get_worker_ips()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        os.environ["GCE_METADATA_HOST"] = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(RuntimeError, match="is this a Cloud TPU VM"):
            tpu.worker_id()


def test_off_tpu_nobody_is_asked(metadata: Metadata) -> None:
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    assert tpu._using_env_vars() and tpu.build_tpu_env_from_vars() == tpu.get_tpu_env() == {}
    assert (tpu.get_worker_ips(), tpu.worker_id(), tpu.task_id(), tpu.process_bounds_size()) == (["localhost"], 0, 0, None)
    assert tpu.num_available_devices() == tpu.num_available_chips() == tpu.num_local_processes() == 0
    for ask in (tpu.get_tpu_type, tpu.version, tpu.num_logical_cores_per_chip, tpu.num_expected_global_devices):
        with pytest.raises(RuntimeError, match="TPU_ACCELERATOR_TYPE"):
            ask()
    assert socket.inet_aton(tpu.discover_master_worker_ip(use_localhost=False))
    assert not metadata.asked
    os.environ["TPU_ACCELERATOR_TYPE"] = "something"
    with pytest.raises(RuntimeError, match=r"'something'.*v4-8"):
        tpu.version()


def test_the_environment_wins(metadata: Metadata) -> None:
    by_metadata(SLICES[0], metadata)
    os.environ |= {"TPU_WORKER_ID": "3", "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_WORKER_HOSTNAMES": "one, two"}
    env = tpu.get_tpu_env()
    assert isinstance(env, tpu.TpuEnv) and env["ZONE"] == "us-central2-b" and env["ACCELERATOR_TYPE"] == "v2-8"
    assert env.accelerator_type == tpu.get_tpu_type() == "v4-16"
    assert (tpu.worker_id(), tpu.get_worker_ips()) == (3, ["one", "two"])
    assert not tpu._using_env_vars()


def test_processes_that_do_not_fit_the_chips(metadata: Metadata, tmp_path: Path) -> None:
    by_environment(SLICES[4], metadata)
    before = dict(os.environ)
    with pytest.raises(ValueError, match=r"3 processes on each of 2 TPU hosts.*1,1,2 hosts with 2,2,1 chips"):
        tpu.configure_topology(0, 3)
    with pytest.raises(ValueError, match="local_rank is 4"):
        tpu.configure_topology(4, 4)
    tpu.configure_topology(0, 1)
    assert dict(os.environ) == before, "one process has the whole host, as libtpu finds it"
    plug_in(tmp_path, 4, "0x005e")
    os.environ["TPU_PROCESS_BOUNDS"] = "4,4,1"
    with pytest.raises(RuntimeError, match=r"16 processes on 2 hosts.*4 chips"):
        tpu.num_local_processes()
    os.environ["TPU_PROCESS_BOUNDS"] = "4,four"
    with pytest.raises(ValueError, match="'4,four' is no shape"):
        tpu.process_bounds_size()


def test_a_host_of_which_nothing_is_known() -> None:
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    tpu.configure_topology(2, 4, base_port=9000)
    assert (os.environ["TPU_PROCESS_BOUNDS"], os.environ["TPU_PROCESS_PORT"]) == ("2,2,1", "9002")


def test_a_chip_that_ray_chose_is_the_place_of_the_process(metadata: Metadata, tmp_path: Path) -> None:
    """Ray gives a worker one chip, as if there were no other, and numbers its workers as it likes."""
    by_environment(SLICES[4], metadata)
    os.environ |= {"TPU_VISIBLE_CHIPS": "3", "TPU_HOST_BOUNDS": "1,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1"}
    plug_in(tmp_path, 4, "0x005e")
    assert tpu.num_available_devices() == 1
    tpu.configure_topology(0, 4)
    assert (os.environ["TPU_PROCESS_BOUNDS"], os.environ["TPU_VISIBLE_CHIPS"], os.environ["TPU_PROCESS_PORT"]) == ("2,2,2", "3", "8479")
    assert tpu.task_id() == 1 * 4 + 3


def test_one_chip_for_a_process_on_its_own() -> None:
    os.environ["TPU_VISIBLE_CHIPS"] = "2"
    tpu.configure_one_chip_topology()
    names = (xenv.TPU_CHIPS_PER_PROCESS_BOUNDS, xenv.TPU_PROCESS_BOUNDS, xenv.TPU_VISIBLE_CHIPS)
    assert [os.environ[name] for name in names] == ["1,1,1", "1,1,1", "2"]


def test_mesh_shapes() -> None:
    assert tpu.MeshShape.from_string("2, 4,1") == tpu.MeshShape(2, 4, 1)
    assert (tpu.MeshShape(2, 4, 1).size, tpu.MeshShape(2, 4, 1).text) == (8, "2,4,1")
    for text in ("2,2", "2,0,1", "a,b,c", ""):
        with pytest.raises(ValueError, match="is no shape of a TPU mesh"):
            tpu.MeshShape.from_string(text)


def test_all_named_slices_have_the_chips_of_their_name() -> None:
    """The number counts cores up to v5p, two for each chip, and chips after."""
    for kind, bounds in hosts.KNOWN_SLICES.items():
        generation, _, number = kind.partition("-")
        assert bounds.by_chip().size == int(number) // (1 if generation in ("v5litepod", "v6e") else 2), kind


def test_all_chips_that_jax_knows_are_known() -> None:
    hardware = pytest.importorskip("jax._src.hardware_utils")
    assert hardware._GOOGLE_PCI_VENDOR_ID == tpu._GOOGLE_PCI_VENDOR_ID
    assert set(tpu._TPU_PCI_DEVICE_IDS) >= {device for device, kind in hardware._TPU_PCI_DEVICE_IDS.items() if kind.name != "plc"}


def test_the_plugin(metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tpu.TpuPlugin()
    assert isinstance(plugin, plugins.DevicePlugin) and plugin.client_create_options() == {}
    by_metadata(SLICES[4], metadata)
    (tmp_path / "pci").mkdir()
    monkeypatch.setattr(hosts, "PCI_DEVICES", tmp_path / "pci")
    plug_in(tmp_path / "pci", 4, "0x005e")
    assert (plugin.physical_chip_count(), plugin.host_index()) == (4, 1)
    plugin.configure_multiprocess(1, 4)
    assert os.environ["CLOUD_TPU_TASK_ID"] == "5"
    plugin.configure_single_process()
    assert os.environ["TPU_PROCESS_BOUNDS"] == "2,2,2", "what is set stays"
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(OSError, match=r"xla-core\[tpu\]"):
        plugin.library_path()
    monkeypatch.setitem(sys.modules, "libtpu", SimpleNamespace(get_library_path=lambda: "/lib/libtpu.so"))
    assert plugin.library_path() == "/lib/libtpu.so"
    own = tmp_path / "libtpu.so"
    os.environ[settings.TPU_LIBRARY_PATH.name] = str(own)
    with pytest.raises(FileNotFoundError, match="TPU_LIBRARY_PATH"):
        plugin.library_path()
    own.touch()
    assert plugin.library_path() == str(own)
