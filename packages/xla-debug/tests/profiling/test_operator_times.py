"""Device time by operator: what JAX's compiler says of each instruction, whole profiles, files that are none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import torch_xla
import torch_xla.debug.profiler as xp
from xla_debug.cli import group
from xla_debug.profiling.hlo_origins import Origin, origin_of, origins
from xla_debug.profiling.profile_file import kernels
from xla_debug.profiling.wire_format import Message, fields, number_field, text_field

pytestmark = pytest.mark.filterwarnings("ignore:builtin type event_stats has no __module__")  # of jaxlib 0.12


class Block(torch.nn.Module):
    """A list of layers that it calls itself, and an operation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(2))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result = value
        for layer in self.layers:
            result = layer(result)  # a layer
        return torch.cosh(result)  # its own


def line_of(marker: str) -> str:
    (number,) = (number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(f"# {marker}"))
    return f"{Path(__file__).name}:{number}"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of two training steps of blocks, that were named."""
    folder = tmp_path_factory.mktemp("profile")
    model = torch.nn.Sequential(Block(), torch.nn.ReLU(), Block()).to("xla")
    data = torch.randn(64, 96, device="xla")

    def step() -> None:
        model.zero_grad()
        model(data).sum().backward()  # backward
        torch_xla.sync(wait=True)

    torch_xla.sync()
    with xp.name_modules(model):
        step()
        step()
        xp.start_trace(folder)
        step()
        step()
        xp.stop_trace()
    yield folder


def test_times_have_operator_module_and_line_forward_and_backward(profile: Path) -> None:
    times = xp.operator_times(profile)
    assert times == sorted(times, key=lambda each: -each.ms) and all(each.ms > 0 and each.count >= 2 for each in times)
    seen = {(each.operator, each.module, each.line): each for each in times}
    for block in ("0", "2"):
        for layer in ("0", "1"):
            forward = seen["aten.linear", f"{block}.layers.{layer}", line_of("a layer")]
            backward = seen["aten.linear_backward", f"{block}.layers.{layer}", line_of("backward")]
            assert forward.count >= 2 and backward.count >= 2
    own = {each.module for each in times if "aten.cosh" in (each.operator, *each.fused)}
    assert own and own <= {"0", "2", "1"}, "of the block, or fused into what follows"
    assert ("aten.linear", "", line_of("a layer")) not in seen


def test_the_sum_is_the_time_of_all_kernels(profile: Path) -> None:
    (file,) = profile.glob("plugins/profile/*/*.xplane.pb")
    host = jax.profiler.ProfileData.from_file(str(file)).find_plane_with_name("/host:CPU")
    assert host is not None
    spans = [(event.start_ns, event.duration_ns) for line in host.lines for event in line.events if "hlo_op" in dict(event.stats)]
    found = list(kernels(file))
    assert len(found) == len(spans) == sum(each.count for each in xp.operator_times(file))
    assert sum(each.own_ns for each in found) * 1e-6 == pytest.approx(sum(each.ms for each in xp.operator_times(profile)))
    assert all(0 <= each.own_ns <= each.duration_ns for each in found)
    assert sum(each.own_ns for each in found) >= max(duration for _, duration in spans)


def test_outside_of_the_block_nothing_has_a_module(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 50)).to("xla")
    data = torch.randn(9, 50, device="xla")
    with xp.name_modules(model):
        pass
    xp.start_trace(tmp_path)
    model(data)
    torch_xla.sync(wait=True)
    xp.stop_trace()
    assert {each.module for each in xp.operator_times(tmp_path)} == {""}


def test_a_forward_that_fails_leaves_its_scope() -> None:
    class Failing(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    model = torch.nn.Sequential(Failing()).to("xla")
    with xp.name_modules(model):
        with pytest.raises(ValueError, match="no"):
            model(torch.ones(2, device="xla"))
        torch_xla.sync()  # raises in a scope


def test_instructions_are_of_the_operators_that_the_compiled_text_names() -> None:
    """JAX prints the compiled program with its metadata; a profile holds the same program encoded."""

    def program(left: jax.Array, right: jax.Array) -> jax.Array:
        with jax.named_scope("encoder.0"), jax.named_scope("aten.mm[train.py:17]"):
            product = left @ right
        with jax.named_scope("aten.tanh[model.py:3<train.py:17]"):
            return jax.numpy.tanh(product) + 1

    compiled = jax.jit(program).lower(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    found = origins(text_field(1, module.as_serialized_hlo_module_proto()))
    text = module.to_string()
    named = dict(re.findall(r"%?([\w.-]+) = [^\n]*op_name=\"([^\"]*)\"", text))
    assert {origin_of(name) for name in named.values()} >= {
        Origin("aten.mm", "encoder.0", "train.py:17"),
        Origin("aten.tanh", "", "model.py:3"),
    }
    for name, op_name in named.items():
        of_text, of_proto = origin_of(op_name), found[name]
        if of_text is not None and not of_proto.fused:
            assert (of_proto.operator, of_proto.module, of_proto.line) == (of_text.operator, of_text.module, of_text.line)
    assert found.keys() >= named.keys()


@pytest.mark.parametrize(
    ("op_name", "origin"),
    [
        ("jit(step)/aten.add.Tensor[a b.py:7]/add", Origin("aten.add.Tensor", "", "a b.py:7")),
        ("jit(step)/train/decoder.3/aten.mm[unknown]/dot_general", Origin("aten.mm", "train.decoder.3", None)),
        ("jit(step)/xla.scan[t.py:1]/while/body/aten.exp[t.py:2]/exp", Origin("aten.exp", "", "t.py:2")),
        ("jit(step)/shmap_body/aten.exp[t.py:2]/exp", Origin("aten.exp", "", "t.py:2")),
        ("arguments[3]", None),
        ("jit(step)/broadcast_in_dim", None),
        ("", None),
    ],
)
def test_names_of_operations(op_name: str, origin: Origin | None) -> None:
    assert origin_of(op_name) == origin


def test_kernels_of_a_device_s_plane_find_their_program_by_its_number(tmp_path: Path) -> None:
    """A TPU gives the text of the instruction, and the program's number beside the name of the event."""

    def entry(number: int, value: bytes) -> bytes:
        return number_field(1, number) + text_field(2, value)

    def event(metadata: int, offset_ps: int, duration_ps: int) -> bytes:
        return text_field(4, number_field(1, metadata) + number_field(2, offset_ps) + number_field(3, duration_ps))

    instruction = text_field(1, b"fusion.3") + text_field(2, b"add") + text_field(7, text_field(2, b"jit(f)/mlp/aten.add[t.py:4]/add"))
    proto = text_field(1, text_field(1, b"jit_f") + text_field(3, text_field(1, b"main") + text_field(2, instruction)))
    of_proto = entry(5, number_field(1, 5) + text_field(2, b"jit_f(5)") + text_field(5, number_field(1, 1) + text_field(6, proto)))
    programs = text_field(2, b"/host:metadata") + text_field(4, of_proto)
    name = b"%fusion.3 = f32[8]{0} fusion(f32[8]{0} %p), kind=kLoop"
    of_event = entry(1, number_field(1, 1) + text_field(2, name) + text_field(5, number_field(1, 7) + number_field(3, 5)))
    of_stat = entry(7, number_field(1, 7) + text_field(2, b"program_id"))
    operations = text_field(2, b"XLA Ops") + event(1, 0, 3_000_000) + event(1, 5_000_000, 1_000_000)
    steps = text_field(2, b"Steps") + event(1, 0, 9_000_000)
    plane = text_field(2, b"/device:TPU:0") + text_field(3, steps) + text_field(3, operations)
    plane += text_field(4, of_event) + text_field(5, of_stat)
    (tmp_path / "host.xplane.pb").write_bytes(text_field(1, programs) + text_field(1, plane))
    assert xp.operator_times(tmp_path) == [xp.OperatorTime("aten.add", "mlp", "t.py:4", pytest.approx(0.004), 2)]
    assert [each.device for each in kernels(tmp_path)] == ["TPU:0"] * 2


def test_the_command_shows_a_table_or_json(profile: Path) -> None:
    times = xp.operator_times(profile)
    shown = CliRunner().invoke(group, ["operators", str(profile), "--most", str(len(times) - 1)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and times[0].operator in shown.output and "and 1 more: --most" in shown.output
    listed = json.loads(CliRunner().invoke(group, ["operators", str(profile), "--json"]).output)
    assert [each["ms"] for each in listed] == [each.ms for each in times]


def test_what_is_no_profile_is_said(profile: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        xp.operator_times(tmp_path / "missing")
    with pytest.raises(ValueError, match="holds no profile"):
        xp.operator_times(tmp_path)
    (whole,) = profile.glob("plugins/profile/*/*.xplane.pb")
    (tmp_path / "cut.xplane.pb").write_bytes(whole.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"cut\.xplane\.pb: no profile that can be read"):
        xp.operator_times(tmp_path)
    refused = CliRunner().invoke(group, ["operators", str(tmp_path)])
    assert refused.exit_code == 2 and refused.output.startswith("Error: ") and len(refused.output.splitlines()) == 1


def test_messages_that_are_cut_off_or_none_are_refused() -> None:
    message = number_field(1, 300) + text_field(2, b"text") + b"\x1d\x01\x02\x03\x04"
    assert list(fields(message)) == [(1, 300), (2, b"text"), (3, b"\x01\x02\x03\x04")]
    assert Message(text_field(38, bytes([1, 2, 172, 2]))).numbers(38) == [1, 2, 300], "packed"
    assert text_field(4, number_field(2, 300)) == b"\x22\x03\x10\xac\x02"
    for wrong in (message[:-1], message[:2] + b"\xff" * 12, b"\x0c"):
        with pytest.raises(ValueError, match="field|number"):
            list(fields(wrong))
