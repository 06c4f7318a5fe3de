"""The profiler server: at which addresses it listens, what it answers to whom, and what a client cannot have it do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_python
import grpc
import pytest
import torch

import torch_xla.debug.profiler as xp
from xla_debug.profiling.profiler_service import ProfilerServer
from xla_debug.profiling.wire_format import Message, number_field, text_field

# Of ProfileRequest and ProfileOptions, as XLA's profiler_service.proto has them.
REPOSITORY_ROOT, OPTIONS, SESSION, EMIT, HOST_NAME = 3, 4, 5, 9, 7
HOST_LEVEL, VERSION, DURATION = 2, 5, 9


def reaches(address: str, port: int) -> bool:
    """Whether anybody listens there."""
    try:
        socket.create_connection((address, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def other_addresses() -> list[str]:
    """Addresses of this machine beside 127.0.0.1: a second one of the loopback, and that of the network, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))  # sends nothing
            return ["127.0.0.2", probe.getsockname()[0]]
        except OSError:
            return ["127.0.0.2"]


@pytest.fixture
def served(free_port: Callable[[], int]) -> Iterator[tuple[ProfilerServer, int]]:
    port = free_port()
    server = xp.start_server(port)
    assert server is not None
    yield server, port
    server.stop()


def ask(address: str, message: bytes) -> Message:
    """What the server answers to an encoded request, while this process works."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            with xp.Trace("asked_for"):
                torch.ones(3, device="xla").sum().item()

    torch.ones(3, device="xla").sum().item()  # compiled now: what begins before the profile is not in it
    worker = threading.Thread(target=work)
    worker.start()
    try:
        with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            return Message(channel.unary_unary("/tensorflow.ProfilerService/Profile")(message, timeout=60))
    finally:
        ended.set()
        worker.join()


def options(duration_ms: int, *levels: int) -> bytes:
    """Encoded ProfileOptions."""
    numbers = [(VERSION, 1), (DURATION, duration_ms), *((HOST_LEVEL, level) for level in levels)]
    return text_field(OPTIONS, b"".join(number_field(field, number) for field, number in numbers))


def test_it_listens_at_the_loopback_alone(served: tuple[ProfilerServer, int]) -> None:
    _, port = served
    assert reaches("127.0.0.1", port)
    for address in other_addresses():
        assert not reaches(address, port), address
    with socket.socket(socket.AF_INET6) as probe:
        assert not socket.has_ipv6 or probe.connect_ex(("::1", port)) != 0


def test_it_listens_at_all_addresses_if_asked_to(free_port: Callable[[], int]) -> None:
    port = free_port()
    server = xp.start_server(port, host="0.0.0.0")
    assert server is not None
    try:
        assert all(reaches(address, port) for address in ("127.0.0.1", *other_addresses()))
    finally:
        server.stop()


def test_a_process_watches_itself(served: tuple[ProfilerServer, int], tmp_path: Path) -> None:
    torch.ones(3, device="xla").sum().item()  # compiled now: what begins before the profile is not in it
    watching = threading.Thread(target=xp.trace, args=(f"localhost:{served[1]}", str(tmp_path)), kwargs={"duration_ms": 500})
    watching.start()
    while watching.is_alive():
        with xp.Trace("watched_by_itself"):
            torch.ones(3, device="xla").sum().item()
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert b"watched_by_itself" in file.read_bytes()


def test_a_viewer_gets_the_profile_and_no_folder_is_written(served: tuple[ProfilerServer, int], tmp_path: Path) -> None:
    """As TensorBoard asks: with XLA's server the program would write to the folder that the client names."""
    named = text_field(REPOSITORY_ROOT, str(tmp_path / "chosen").encode()) + text_field(SESSION, b"../x") + text_field(HOST_NAME, b"h")
    answer = ask(served[0].address, named + options(300, 2))
    tool = Message(answer.part(6))
    assert tool.text(1) == "xplane.pb" and b"asked_for" in tool.part(2) and not answer.part(8) and not answer.number(7)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "message",
    [b"\xff\xff", text_field(OPTIONS, b"\x0f"), options(2**63), options(3_600_001), options(1, 4), options(1, 2**40)],
    ids=["cut off", "no options", "for ever", "too long", "level", "huge level"],
)
def test_a_request_that_is_none_is_refused(served: tuple[ProfilerServer, int], message: bytes) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ask(served[0].address, message)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "not a request for a profile" in refused.value.details()
    assert ask(served[0].address, options(50, 2) + number_field(EMIT, 1)).part(8)  # it serves on


SERVES_AND_TELLS_OF_PROFILES = """
import sys
import torch_xla.debug.profiler as xp
from xla_debug import _compat

begin_session = _compat.profiler_session

def profiler_session(*levels):
    try:
        return begin_session(*levels)
    finally:
        print("a profile is being made", flush=True)

_compat.profiler_session = profiler_session
xp.start_server(int(sys.argv[1]))
print("serving", flush=True)
sys.stdin.read(1)
"""


def test_the_end_of_the_program_does_not_wait_for_a_profile(free_port: Callable[[], int]) -> None:
    """Who asks for an hour cannot hold the program up for it."""
    port = free_port()
    program = [sys.executable, "-c", SERVES_AND_TELLS_OF_PROFILES, str(port)]
    with forked_python.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"serving\n"
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            asked = channel.unary_unary("/tensorflow.ProfilerService/Profile").future(options(3_600_000, 2))
            assert process.stdout.readline() == b"a profile is being made\n" and not asked.done()
            _, printed = process.communicate(b"x", timeout=120)
            assert process.returncode == 0, printed
            assert asked.exception(timeout=60) is not None or asked.result()
