"""Which XLA compiler options programs get: what the jaxlib knows and the user does not set; programs of other options are others."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_programs import compiled_for
from jax.sharding import SingleDeviceSharding

from xla_core.engine.compile import options
from xla_core.engine.compile.options import compiler_options, quick_options
from xla_core.engine.runtime.client import client

YNN, PASSES = "xla_cpu_experimental_ynn_fusion_type", "xla_disable_hlo_passes"


def test_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert list(compiler_options("cpu")) == [YNN, PASSES]
    assert compiler_options("cuda") == compiler_options("tpu") == {}


def test_this_jaxlib_takes_every_option_of_quick_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert quick_options("cpu") == options._QUICK_CPU_OPTIONS
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert list(quick_options("cpu")) == ["xla_cpu_use_fusion_emitters", "xla_cpu_parallel_codegen_split_count"]
    assert quick_options("cuda") == {}


@pytest.mark.targets
def test_the_compiler_for_tpus_makes_another_program_of_quick_options() -> None:
    with compiled_for("v5e:1x1"):
        square = jax.ShapeDtypeStruct((512, 512), np.float32, sharding=SingleDeviceSharding(client().target.devices[0]))
        lowered = jax.jit(lambda x: jnp.tanh(jnp.tanh(x @ x) @ x)).lower(square)
        assert lowered.compile(compiler_options=quick_options("tpu")).as_text() != lowered.compile().as_text()


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (f"--{YNN}=LIBRARY_FUSION_TYPE_DOT", [PASSES]),
        (f"  --xla_dump_to='a b' -{YNN}=+individual_dot", [PASSES]),
        (f"--{YNN}=LIBRARY_FUSION_TYPE_DOT --{PASSES}=dce", []),
        (f"--{YNN}", [PASSES]),
        # Names that hold ours, or have it as a value, are others.
        (f"--{PASSES}_too=dce --not_{YNN}=x", [YNN, PASSES]),
        (f"--xla_dump_to={YNN}", [YNN, PASSES]),
        ("", [YNN, PASSES]),
    ],
)
def test_what_xla_flags_say_is_not_said_again(monkeypatch: pytest.MonkeyPatch, flags: str, left: list[str]) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert list(compiler_options("cpu")) == left


def test_flags_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flags").write_text(f"--xla_dump_to=x\n--{PASSES}=dce\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert list(compiler_options("cpu")) == [YNN]
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "missing"))
    assert list(compiler_options("cpu")) == [YNN, PASSES]


def test_options_that_the_jaxlib_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    known = options._CPU_OPTIONS[YNN]
    monkeypatch.setattr(options, "_CPU_OPTIONS", {"xla_cpu_of_another_time": "1", YNN: known, PASSES: "dce"})
    assert compiler_options("cpu") == {YNN: known, PASSES: "dce"}
    monkeypatch.setattr(options, "_CPU_OPTIONS", {YNN: "LIBRARY_FUSION_TYPE_OF_ANOTHER_TIME"})
    assert compiler_options("cpu") == {}


def test_a_jaxlib_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(options, "_CPU_OPTIONS", {"xla_cpu_asked_once": "1"})
    monkeypatch.setattr(jax, "jit", lambda *args, jit=jax.jit, **named: asked.append(named) or jit(*args, **named))
    assert compiler_options("cpu") == compiler_options("cpu") == {}
    assert len(asked) == 1


def test_other_errors_are_not_taken_for_an_unknown_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **named: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no memory")

    monkeypatch.setattr(jax, "jit", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no memory"):
        options._known(xla_cpu_not_asked_before="1")
