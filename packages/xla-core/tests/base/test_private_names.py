"""Every private name of torch and jax that the core uses still does what it is used for: after an upgrade, look here first."""

from __future__ import annotations

import _thread
import gc
import inspect
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.mlir.dialects import stablehlo
from torch.fx.experimental.proxy_tensor import make_fx

from xla_core.base import private_jax, private_torch, signal_handlers
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.tensor.tensor import XLATensor


def test_a_wrapper_has_the_device_shape_and_strides_it_is_told() -> None:
    wrapper = private_torch.make_wrapper(XLATensor, (2, 3), (1, 2), None, None, torch.int64, torch.strided, torch.device("xla", 0))
    assert (type(wrapper), wrapper.shape, wrapper.dtype, str(wrapper.device)) == (XLATensor, (2, 3), torch.int64, "xla:0")
    assert torch.Tensor.stride(wrapper) == (1, 2)


def test_lazy_bits() -> None:
    wrapper = torch.zeros(2, dtype=torch.complex64, device="xla").detach()
    private_torch.set_conj(wrapper, True)
    private_torch.set_neg(wrapper, True)
    assert wrapper.is_conj() and wrapper.is_neg()


def test_pickles_name_functions_that_torch_loads_safely() -> None:
    for function in (private_torch.rebuild_tensor, private_torch.rebuild_tensor_of_new_dtype, private_torch.rebuild_subclass):
        module = __import__(function.__module__, fromlist=["name"])
        assert getattr(module, function.__name__) is function
    for dtype in (torch.float32, torch.uint16):
        new = dtype in private_torch.dtypes_without_typed_storages()
        rebuild, parts = torch.arange(3).to(dtype)[1:].__reduce_ex__(2)
        assert rebuild is (private_torch.rebuild_tensor_of_new_dtype if new else private_torch.rebuild_tensor)
        assert parts[1:5] == (1, (2,), (1,), False) and parts[6:] == ((dtype,) if new else ())
    twin = torch.ones(1, dtype=torch.complex64).conj()
    assert private_torch.conj_and_neg_bits(twin) == twin.__reduce_ex__(2)[1][6] == {"conj": True}  # type: ignore[index,comparison-overlap]


def test_text_of_a_tensor() -> None:
    assert private_torch.tensor_text(torch.tensor([1.0, 2.0])) == "tensor([1., 2.])"


def test_kernels_are_found() -> None:
    assert private_torch.has_kernel("aten::add.Tensor", "CPU") and not private_torch.has_kernel(
        "aten::add.Tensor", "CompositeImplicitAutograd"
    )


def test_whole_backward_passes_are_told_from_partial_ones() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    for run in (lambda out: out.backward(), lambda out: torch.autograd.grad(out, x)):
        middle = x * 2
        middle.register_hook(lambda grad: seen.append(private_torch.backward_is_whole()))
        run(middle.sum())
    assert seen == [True, False]


def test_trees() -> None:
    leaves, spec = private_torch.tree_flatten({"a": [1, (2,)]})
    assert leaves == private_torch.tree_leaves({"a": [1, (2,)]}) == [1, 2] and isinstance(spec, private_torch.TreeSpec)
    assert private_torch.tree_unflatten(leaves, spec) == {"a": [1, (2,)]} and private_torch.treespec_dumps(spec).startswith(
        '[1, {"type": "builtins.dict"'
    )
    (inner,) = private_torch.treespec_children(spec)
    assert (inner.type, inner.num_leaves) == (list, 2) and spec.context == ["a"]
    assert private_torch.tree_map(lambda leaf: -leaf, [1, (2,)]) == [-1, (-2,)]


def test_a_class_becomes_a_node_of_trees() -> None:
    class Pair:
        def __init__(self, one: int, other: int) -> None:
            self.both = [one, other]

    private_torch.register_node(Pair, lambda pair: (pair.both, "context"), lambda both, context: Pair(*both))
    leaves, spec = private_torch.tree_flatten((Pair(1, 2), 3))
    assert leaves == [1, 2, 3]
    assert private_torch.tree_unflatten([4, 5, 6], spec)[0].both == [4, 5]


def test_each_backward_pass_goes_through_one_function_of_python() -> None:
    frames = []

    def profile(frame: Any, event: str, called: Any) -> None:
        if event == "call" and frame.f_code is private_torch.backward_entry.__code__:
            frames.append((frame.f_locals["t_outputs"], frame.f_locals["args"]))

    x = torch.ones(2, requires_grad=True)
    loss = (x * 2).sum()
    sys.setprofile(profile)
    try:
        loss.backward(retain_graph=True)
        torch.autograd.grad(loss, x)
    finally:
        sys.setprofile(None)
    assert [[output is loss for output in outputs] for outputs, _ in frames] == [[True], [True]]
    assert [bool(args[1]) for _, args in frames] == [True, False]  # whether the graph is kept


def test_modes_that_change_operations_are_seen() -> None:
    assert not private_torch.in_forward_mode()
    with torch.autograd.forward_ad.dual_level():
        assert private_torch.in_forward_mode()
    before = private_torch.function_modes()
    with torch.device("cpu"):
        assert private_torch.function_modes() == before + 1


def test_overloads_are_of_one_type() -> None:
    assert isinstance(torch.ops.aten.add.Tensor, private_torch.OpOverload)


def test_a_key_can_be_excluded() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), private_torch.excluding_key("AutocastCPU"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_lists_of_types_are_those_that_torch_asks() -> None:
    from torch.optim import optimizer

    for supported in private_torch.foreach_types():
        assert torch.Tensor in supported and XLATensor in supported
    assert optimizer._default_to_fused_or_foreach([torch.ones(1, device="xla")], False)[1] is True


def test_tensors_on_the_cpu_take_over_a_bridge() -> None:
    bridge = private_torch.make_bridge(XLATensor, (2, 3), (1, 2), 0, torch.float32, torch.device("xla", 0))
    parameter = torch.nn.Parameter(torch.ones(4))
    assert private_torch.may_get_data(parameter, bridge) and private_torch.may_get_data(bridge, parameter)
    with private_torch.without_torch_function():
        private_torch.set_cpp_data(parameter, bridge)
    assert (type(parameter), parameter.shape, parameter.stride(), str(parameter.device)) == (torch.nn.Parameter, (2, 3), (1, 2), "xla:0")
    assert parameter.untyped_storage()._cdata == torch.Tensor.untyped_storage(bridge)._cdata
    with pytest.raises(RuntimeError, match="data pointer"):
        parameter.data_ptr()


def test_storages_keep_attributes_while_c_holds_them() -> None:
    tensor = torch.ones(2)
    tensor.untyped_storage().kept = [1]
    other = tensor.detach()
    del tensor
    gc.collect()
    assert other.untyped_storage().kept == [1]


def test_classes_of_torchs_own_do_not_dispatch() -> None:
    assert (
        torch.nn.Parameter.__torch_dispatch__ is private_torch.NO_TORCH_DISPATCH
        and XLATensor.__torch_dispatch__ is not private_torch.NO_TORCH_DISPATCH
    )


def test_subclasses_are_made_over_the_data_of_a_tensor() -> None:
    kind = type("Kind", (torch.Tensor,), {})
    data = torch.ones(2, requires_grad=True)
    assert type(private_torch.as_subclass(data, kind)) is kind and private_torch.as_subclass(data, kind).requires_grad
    made = private_torch.make_subclass(kind, data, False)
    assert type(made) is kind and not made.requires_grad and made.data_ptr() == data.data_ptr()


def test_modules_are_told_to_swap() -> None:
    assert private_torch.swaps_parameters() is False
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert private_torch.swaps_parameters() is True
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_classes_make_things_of_the_device_they_are_told() -> None:
    for kind, own in (
        (torch.Generator, private_torch.CppGenerator),
        (torch.Stream, private_torch.CppStream),
        (torch.Event, private_torch.CppEvent),
    ):
        assert issubclass(kind, own) and isinstance(kind(device="xla"), own) and type(kind(device="xla")) is not own
    assert type(torch.Generator()) is private_torch.CppGenerator
    made = private_torch.CppStream(stream_id=0, device_index=2, device_type=private_torch.CppStream("xla").device_type)
    assert made.device == torch.device("xla:2")
    generator = torch.Generator("xla")
    assert generator._cdata == private_torch.CppGenerator._cdata.__get__(generator) != torch.Generator("xla")._cdata


def test_torch_asks_for_its_accelerator_where_we_answer() -> None:
    asked: list[str] = []
    before = torch._C._accelerator_synchronizeDevice
    try:
        private_torch.serve_accelerator({"synchronizeDevice": lambda index: asked.append(f"device {index}"), "noSuchThing": lambda: None})
        torch.accelerator.synchronize()
    finally:
        torch._C._accelerator_synchronizeDevice = before
    assert asked == ["device 0"] and not hasattr(torch._C, "_accelerator_noSuchThing")


def test_pinning_is_for_others_where_there_are_any() -> None:
    assert private_torch.pins_for_others("xla") is None
    assert (private_torch.pins_for_others(None) is None) is not torch.cuda.is_available()


def test_operations_have_names() -> None:
    assert {"aten::add.Tensor", "aten::relu"} <= set(private_torch.operation_names())


def test_the_loop_of_radam_is_its_list_form_for_our_parameters() -> None:
    from torch.optim import radam

    assert radam._single_tensor_radam.__wrapped__.__module__ == radam.__name__
    assert inspect.signature(radam._single_tensor_radam) == inspect.signature(radam._multi_tensor_radam)


def test_errors_leave_a_backward_pass() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise LookupError("on purpose")

    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(LookupError, match="on purpose"):
        Fails.apply(x).sum().backward()  # type: ignore[no-untyped-call]


def test_modules_run_outside_a_trace() -> None:
    device = jax.local_devices()[0]
    module = str(jax.jit(lambda x: x + 1).lower(jnp.ones(2)).compiler_ir())
    (result,) = private_jax.compile_module(module, device, compiler_options("cpu"))([jax.device_put(jnp.ones(2), device)])
    assert result.tolist() == [2, 2]
    with pytest.raises(Exception, match="xla_no_such_option"):
        private_jax.compile_module(module, device, {"xla_no_such_option": "1"})


def test_executables_are_bytes_that_the_client_loads() -> None:
    device = jax.local_devices()[0]
    text = str(jax.jit(lambda x: x + 1).lower(jnp.ones(2)).compiler_ir())
    module = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version())
    compiled = private_jax.compiled_bytes(module, device, compiler_options("cpu"))
    (result,) = private_jax.load_executable(compiled, device)([jax.device_put(jnp.ones(2), device)])
    assert result.tolist() == [2, 2]
    for rubbish in (b"", b"rubbish", compiled[:-1]):
        with pytest.raises(RuntimeError):
            private_jax.load_executable(rubbish, device)


def test_jax_lowers_for_devices_by_these_names() -> None:
    """Those of GPUs are `cuda` and `rocm`, not the name of their platform; see test_forms_on_targets.py."""
    device = jax.local_devices()[0]
    name = private_jax.lowering_platform(device)
    assert name == "cpu" and "sine" in jax.jit(jnp.sin).trace(jnp.ones(2)).lower(lowering_platforms=(name,)).as_text()


def test_versions() -> None:
    import importlib.metadata

    assert private_jax.jaxlib_version == importlib.metadata.version("jaxlib")


def test_wrappers_can_be_referred_to_weakly() -> None:
    tensor = torch.ones(2, device="xla")
    reference = weakref.ref(tensor)
    del tensor
    assert reference() is None


def test_conjugates_count_again_as_called_by_user() -> None:
    excluded = torch._C._dispatch_tls_local_exclude_set() | private_torch._LAZY_BITS
    x = torch.tensor([1 + 2j])
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        assert (x.conj() * 1j).tolist() == [(1 + 2j) * 1j], "inside a handler torch forgets conjugates that are made there"
        with private_torch.as_called_by_user():
            assert (x.conj() * 1j).tolist() == [(1 - 2j) * 1j]


def test_views_and_gradients_are_noted_as_called_by_user_if_asked_to() -> None:
    excluded = torch._C._dispatch_tls_local_exclude_set() | private_torch._VIEWS | private_torch._GRADIENTS
    x = torch.ones(2, 3, requires_grad=True)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        with private_torch.as_called_by_user():
            assert not x.t()._is_view() and x.t().grad_fn is None, "inside a handler torch notes neither"
        with private_torch.as_called_by_user(marks_views=True, notes_gradients=True):
            assert x.t()._base is x and x.t().grad_fn is not None


def test_the_kernel_of_a_key_can_be_called() -> None:
    func = torch.ops.aten.block_diag.default
    key = "CompositeExplicitAutograd"
    assert private_torch.has_kernel(str(func.name()), key)
    assert private_torch.call_kernel(func, key, ([torch.ones(1, 1)],), {}).tolist() == [[1.0]]


def test_a_lowering_imports_no_dialect_that_the_start_of_the_client_has_not(interpreter: Callable[..., str]) -> None:
    code = """
        import sys
        import torch, torch_xla
        x = torch.ones(3, device="xla") + 1
        torch_xla.device()
        x.device
        from xla_core.engine.runtime.client import client
        client()
        before = set(sys.modules)
        (x.sinh() @ x).cpu()
        print(sorted(name for name in set(sys.modules) - before if name.startswith("jaxlib.mlir")))
        network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.LayerNorm(3)).to("xla")
        torch.nn.functional.cross_entropy(network(((x * 2 - x) / 3).expand(3, 3)), torch.tensor([1, 2, 0], device="xla")).backward()
        print("torch._dynamo" in sys.modules)
        """
    assert interpreter(code).split() == ["[]", "False"], "nor does any operation import dynamo"


def test_descriptions_of_operations_ask_dynamo_only_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(x: int) -> int:
        return x + 1

    asking = torch._disable_dynamo(described)
    monkeypatch.setitem(torch._decomp.global_decomposition_table["meta"], object(), asking)  # type: ignore[call-overload]
    end = private_torch.infer_before_dynamo()
    assert described.__dynamo_disable is described and asking(1) == 2  # type: ignore[attr-defined]
    end()
    assert not hasattr(described, "__dynamo_disable") and asking(1) == 2
    assert described.__dynamo_disable is not described  # type: ignore[attr-defined]


def test_handlers_of_signals_are_those_of_the_standard_library() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert signal_handlers._own(signal_handlers.get_signal_handler(signal.SIGINT)) is before
    assert signal_handlers._own(signal_handlers.set_signal_handler(signal.SIGINT, signal.default_int_handler)) is before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class _Interrupting:
    """When it is collected, Ctrl-C comes, without any Python code that could see it."""

    __del__ = staticmethod(_thread.interrupt_main)


@pytest.fixture
def _only_our_gc_callbacks() -> Iterator[None]:
    """Python drops an interrupt that comes in a callback written in Python: hypothesis has one."""
    others = [callback for callback in gc.callbacks if getattr(callback, "__module__", "").startswith("hypothesis.")]
    for callback in others:
        gc.callbacks.remove(callback)
    yield
    gc.callbacks.extend(others)


@pytest.mark.usefixtures("_only_our_gc_callbacks")
def test_an_interrupt_while_garbage_is_collected_is_not_lost() -> None:
    assert not [callback for callback in gc.callbacks if inspect.isfunction(callback) and callback.__module__.startswith("jax.")]
    cycle = [_Interrupting()]
    cycle.append(cycle)  # type: ignore[arg-type]
    del cycle
    with pytest.raises(KeyboardInterrupt):
        gc.collect()


def test_garbage_of_jax_is_still_freed_with_that_of_python() -> None:
    freed = []
    collect = private_jax._JaxGarbage.free
    private_jax._JaxGarbage.free = staticmethod(lambda: freed.append(collect()))
    try:
        gc.collect()
    finally:
        private_jax._JaxGarbage.free = staticmethod(collect)
    assert len(freed) == 1


def test_an_array_is_put_on_a_device_as_jax_does_it() -> None:
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    with jax.enable_x64(True):
        for array in (np.arange(6).reshape(2, 3), np.ones((), np.float32), np.zeros((0, 2), bool), np.ones(3, jnp.bfloat16)):
            ours, theirs = private_jax.put_on_device(array, sharding, device), jax.device_put(array, device)
            assert (ours.aval, ours.sharding, ours.committed) == (theirs.aval, theirs.sharding, theirs.committed)
            assert np.array_equal(np.asarray(ours), array)


def test_adam_updates_lists_and_one_by_one_with_the_same_arguments() -> None:
    from torch.optim import adam

    lists, one_by_one = (inspect.signature(getattr(adam, name)).parameters for name in ("_multi_tensor_adam", "_single_tensor_adam"))
    assert list(lists) == list(one_by_one)


def test_make_fx_takes_our_tensors_as_constants() -> None:
    ours = torch.ones(2, device="xla")
    traced = make_fx(lambda x: (x + ours).exp())(torch.zeros(2, device="xla"))
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.add.Tensor, torch.ops.aten.exp.default], "HANDLED_TYPES of torch.fx.experimental.proxy_tensor"
    assert torch.allclose(traced(torch.ones(2, device="xla")).cpu(), torch.tensor(2.0).exp())


class _Ended(StopIteration):
    """An end of the user's own."""


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemError("mine"), StopIteration(3), _Ended()], ids=repr)
def test_what_a_hook_raises_leaves_the_engine(error: BaseException) -> None:
    def fail(grad: torch.Tensor) -> None:
        raise error

    middle = torch.ones(2, device="xla", requires_grad=True) * 2
    middle.register_hook(fail)
    with pytest.raises(StopIteration if isinstance(error, StopIteration) else type(error)):
        middle.sum().backward()


def test_compiled_graphs_are_called_with_a_list() -> None:
    assert private_torch.boxed(lambda a, b: (a, b))([1, 2]) == (1, 2)


def test_ahead_of_time_autograd_hands_out_both_graphs() -> None:
    seen: list[str] = []

    def compiler(model: Any, _: Any) -> Any:
        seen.append(str(model.code))
        return private_torch.boxed(model)

    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda a: a.sin(), backend=private_torch.ahead_of_time(compiler))(x).sum().backward()
    assert ["cos" in code for code in seen] == [False, True]


def test_modes_that_ignore_compiled_graphs_do_not_see_them() -> None:
    class Blind(private_torch.DispatchMode):  # type: ignore[misc]
        ignores = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return cls.ignores

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Seeing(Blind):
        ignores = False

    seen: list[Any] = []
    with Seeing(), Blind(), Blind():
        assert private_torch.has_dispatch_modes() == 3
        with private_torch.hidden_from_modes():
            assert private_torch.has_dispatch_modes() == 1
            torch.ones(2)
        assert len(seen) == 1 and private_torch.has_dispatch_modes() == 3


def test_higher_order_operators_have_kernels_for_all_devices() -> None:
    from torch._higher_order_ops.effects import with_effects

    keys: Any = torch._C.DispatchKey
    assert isinstance(with_effects, private_torch.HigherOrderOperator)
    assert keys.CompositeExplicitAutograd in with_effects.py_kernels
    for operator in torch._ops._higher_order_ops.values():
        assert not operator.non_fallthrough_keys.has(keys.AutocastPrivateUse1)
    kind = type("Kind", (torch.Tensor,), {})
    private_torch.run_higher_order_on(with_effects, kind)
    assert with_effects.python_key_table.pop(kind) is with_effects.py_kernels[keys.CompositeExplicitAutograd]
    assert private_torch.FUNCTION_TRANSFORMS_IN == torch._C._functorch._grad_increment_nesting.__module__


def test_random_states_of_other_devices_are_torchs() -> None:
    import importlib

    operators = importlib.import_module(private_torch.RANDOM_STATES_DEFINED_IN)
    state, first = operators.run_and_save_rng_state(torch.ops.aten.rand.default, [3], device=torch.device("cpu"))
    assert torch.equal(operators.run_with_rng_state(state, torch.ops.aten.rand.default, [3], device=torch.device("cpu")), first)


def test_marks_of_autocast_in_graphs() -> None:
    mode = private_torch.enter_autocast("xla", torch.bfloat16, True, True)
    assert torch.is_autocast_enabled("xla")
    private_torch.exit_autocast(mode)
    assert not torch.is_autocast_enabled("xla")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of torch's own imports
def test_inductor_starts_in_the_function_that_is_wrapped() -> None:
    import importlib

    assert importlib.import_module(private_torch.INDUCTOR_STARTS_IN).compile_fx.__wrapped__.__module__ == private_torch.INDUCTOR_STARTS_IN


def test_the_pass_that_moves_constructors_is_for_a_device() -> None:
    assert private_torch.constructor_mover("xla").target == "xla"


def test_plugins_are_loaded_from_the_library_that_is_named() -> None:
    with pytest.raises((RuntimeError, OSError), match="nowhere"):
        private_jax.register_jax_plugin("test_npu", "/nowhere/npu.so", {})


def test_a_function_runs_between_the_graphs_of_a_compiled_one() -> None:
    graphs = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module

    @private_torch.between_graphs
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(jnp.asarray(x.numpy()))) + (1 if torch.compiler.is_compiling() else 2)

    assert torch.compile(lambda x: there_and_back(x * 3) * 5, backend=backend)(torch.ones(2)).tolist() == [25, 25]
    assert len(graphs) == 2


def test_text_of_hlo_is_read() -> None:
    lowered: Any = jax.jit(lambda x: x + 1).lower(jnp.ones(2))
    assert isinstance(private_jax.serialized_hlo(lowered.as_text(dialect="hlo")), bytes)
    with pytest.raises(RuntimeError):
        private_jax.serialized_hlo("HloModule nothing")


def test_hooks_are_left_out_and_come_back() -> None:
    leaf, seen = torch.ones(2, requires_grad=True), []
    leaf.register_hook(seen.append)
    with private_torch.without_hooks([leaf]):
        torch.autograd.grad((leaf * 2).sum(), leaf)
    assert not seen
    (leaf * 2).sum().backward()
    assert len(seen) == 1


def test_a_module_has_other_parameters_for_a_while() -> None:
    module = torch.nn.Linear(2, 2)
    before = module.weight
    with private_torch.reparametrized(module, {"weight": torch.zeros(2, 2)}, tie_weights=True):
        assert module.weight.sum() == 0 and module.weight is not before
    assert module.weight is before


def test_saved_tensors_may_be_hooked() -> None:
    assert not private_torch.saved_tensors_are_hooked()
    with torch.autograd.graph.save_on_cpu():
        assert private_torch.saved_tensors_are_hooked()


def test_tracers_have_no_constants_on_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    assert mode.may_turn_const(torch.tensor(1.0)) and not mode.may_turn_const(torch.tensor(1.0, device="xla"))


def test_higher_order_operators_are_served_under_autocast_too() -> None:
    operator = torch.ops.higher_order.cond
    assert XLATensor in operator.python_key_table
    assert not operator.non_fallthrough_keys.has(torch._C.DispatchKey.AutocastPrivateUse1)


def test_device_meshes_are_announced_by_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.device_mesh import DeviceMesh

    monkeypatch.setattr(DeviceMesh, "__new__", DeviceMesh.__new__)
    said: list[str] = []
    private_torch.before_device_meshes("meta", lambda: said.append("one"))
    DeviceMesh.__new__(DeviceMesh, "cpu")
    assert said == []
    made = [DeviceMesh.__new__(DeviceMesh, "meta"), DeviceMesh.__new__(DeviceMesh, device_type="meta")]
    assert said == ["one"] * 2 and all(type(one) is DeviceMesh for one in made)

    class Other(DeviceMesh):
        pass

    private_torch.before_device_meshes("meta", lambda: setattr(DeviceMesh, "__new__", lambda cls, device_type: object.__new__(Other)))
    assert type(DeviceMesh.__new__(DeviceMesh, "meta")) is Other, "what `ready` sets makes this one already"


def test_tensors_that_a_transform_wraps_are_known() -> None:
    seen: list[bool] = []
    torch.func.vmap(lambda x: (seen.append(private_torch.is_transformed(x)), x)[1])(torch.ones(2))
    assert seen == [True] and not private_torch.is_transformed(torch.ones(2))


def test_function_modes_see_data() -> None:
    seen: list[bool] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(private_torch.reads_data(func))
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(2, device="xla")
    with Mode():
        _ = tensor.data
        _ = tensor.shape
    assert seen == [True, False]


def test_axes_over_which_an_array_varies() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    seen: list[frozenset[str]] = []

    def local(x: jax.Array, y: jax.Array) -> jax.Array:
        seen.extend([private_jax.varying_axes(x), private_jax.varying_axes(y)])
        return x * y

    parts = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    jax.shard_map(local, mesh=mesh, in_specs=parts, out_specs=parts[0])(jnp.ones(4), jnp.ones(1))
    assert seen == [{"data"}, set()] and not private_jax.varying_axes(jnp.ones(2))


@pytest.mark.parametrize("missing", [True, False])
def test_the_version_of_a_missing_cuda_library_is_that_of_the_build(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        if missing:
            raise RuntimeError("cuSolver internal error")
        return 11000

    plugin = SimpleNamespace(cusolver_get_version=asked, cusolver_build_version=lambda: 12003)
    assert hasattr(jax._src.lib, "cuda_versions")  # type: ignore[attr-defined]
    monkeypatch.setattr("jax._src.lib.cuda_versions", plugin)
    private_jax.answer_for_missing_cuda_libraries()
    assert plugin.cusolver_get_version() == (12003 if missing else 11000)
    monkeypatch.setattr("jax._src.lib.cuda_versions", None)
    private_jax.answer_for_missing_cuda_libraries()
