"""The private names of torch that the core needs, each behind a name that says what it is for.

A test imports every one, so that an upgrade of torch that removes one fails there first.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from opcode import opmap
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import _compile
from torch._C._dynamo import eval_frame as _eval_frame
from torch.autograd import profiler as _profiler
from torch.nn.utils import stateless
from torch.utils import _device, _python_dispatch, _pytree
from torch.utils.backend_registration import rename_privateuse1_backend

from xla_core.base import signal_handlers

try:
    from torch._C import _acc
except ImportError as error:
    raise ImportError(
        f"xla-core needs torch 2.10 or newer (found {torch.__version__}): older ones cannot add a device from Python"
    ) from error
_Function = TypeVar("_Function", bound=Callable[..., Any])
# (major, minor) of this torch, for code that depends on it.
torch_version = tuple(int(part) for part in torch.__version__.split(".")[:2])
OpOverload: TypeAlias = torch._ops.OpOverload
# An operator that takes functions or operators: `torch.ops.higher_order`.
HigherOrderOperator: TypeAlias = torch._ops.HigherOrderOperator
# The structure of nested lists, tuples and dicts, with torch's definition of a leaf.
TreeSpec: TypeAlias = _pytree.TreeSpec
# Sees each operation below autograd; pushed while a body is recorded.
DispatchMode: Any = _python_dispatch.TorchDispatchMode
tree_flatten = _pytree.tree_flatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_unflatten = _pytree.tree_unflatten
treespec_dumps = _pytree.treespec_dumps
# Lets a class be a node of nestings: (class, to children and context, from children and context).
register_node: Callable[..., None] = _pytree.register_pytree_node


def treespec_children(spec: TreeSpec) -> list[TreeSpec]:
    """The children of a nesting, by position. Older torch has them as an attribute only."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


# A wrapper tensor without storage: (cls, size, strides, storage_offset, memory_format, dtype, layout, device).
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
# A context in which torch functions ignore function modes and the `__torch_function__` of subclasses.
without_torch_function: Any = torch._C.DisableTorchFunction
# Keeps torch functions from re-entering Python for our subclass.
DISABLED_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl
# The functions that torch pickles tensors with: of dtypes with typed storages, of others, and subclasses with attributes.
# Pickles name them, and they are allowed under weights_only.
rebuild_tensor: Callable[..., Any] = torch._utils._rebuild_tensor_v2
rebuild_tensor_of_new_dtype: Callable[..., Any] = torch._utils._rebuild_tensor_v3
rebuild_subclass: Any = torch._tensor._rebuild_from_type_v2
# The module that torch.load looks such functions up in.
rebuilding: Any = torch._utils
# What they are given of the conjugate and negative bits: empty if there are none.
conj_and_neg_bits: Callable[[torch.Tensor], dict[str, bool]] = torch._utils.get_tensor_metadata
dtypes_without_typed_storages: Callable[[], Container[torch.dtype]] = torch.storage._new_dtypes
# Every backward pass goes through it, with the tensors that it begins at.
backward_entry: Any = torch.autograd.graph._engine_run_backward
# How many function modes a thread has entered.
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
# Inside it, operations pass torch.func's transforms by. (Never a local variable: a traceback would keep it alive.)
DisableTransforms: Callable[[], AbstractContextManager[None]] = torch._C._DisableFuncTorch
# The text of a CPU tensor as torch prints it.
tensor_text: Callable[[torch.Tensor], str] = torch._tensor_str._str
# The lazy conjugate and negative bits of a wrapper: torch resolves them before an operation reaches the subclass.
set_conj: Callable[[torch.Tensor, bool], None] = torch._C._set_conj
set_neg: Callable[[torch.Tensor, bool], None] = torch._C._set_neg
negative_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
# Whether a dispatch key has a kernel for an operation.
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
# The names of all operations, with their overloads.
operation_names: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names
# Whether `torch.utils.deterministic.fill_uninitialized_memory` is set.
fills_unwritten_memory: Callable[[], bool] = torch._C._get_deterministic_fill_uninitialized_memory
# The memory format that torch's CPU kernels give results of an operand with these strides.
suggested_memory_format: Callable[[torch.Tensor], torch.memory_format] = torch._prims_common.suggest_memory_format
# False inside a backward pass for chosen inputs only, which reentrant checkpoints cannot serve.
backward_is_whole: Callable[[], bool] = torch.autograd._is_checkpoint_valid


def is_unread(storage: torch.UntypedStorage) -> bool:
    """Whether torch.load has made a storage, but not read its bytes yet."""
    return getattr(storage, "_torch_load_uninitialized", False)


def note_as_read(storage: torch.UntypedStorage) -> None:
    """Say that the bytes of a storage were read."""
    storage._torch_load_uninitialized = False  # type: ignore[attr-defined]  # torch's own


_LAZY_BITS = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate) | torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_GRADIENTS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)


def as_called_by_user(*, marks_views: bool = False, notes_gradients: bool = False) -> Any:
    """A context in which torch regards conjugate and negative bits again and, if asked to, marks views as such and notes gradients.

    Inside `__torch_dispatch__` torch has done that for the arguments and results, and does not for tensors that kernels make.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set() - _LAZY_BITS
    excluded = excluded - _VIEWS if marks_views else excluded
    excluded = excluded - _GRADIENTS if notes_gradients else excluded
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def call_kernel(
    func: OpOverload, key: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, marks_views: bool = False, notes_gradients: bool = False
) -> Any:
    """Call the kernel that `func` has for a dispatch key, whatever key its arguments would dispatch to.

    marks_views: views that it makes are views to torch. notes_gradients: differentiate what it calls.
    """
    with as_called_by_user(marks_views=marks_views, notes_gradients=notes_gradients):
        return func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)


def register_device(name: str, module: ModuleType) -> None:
    """Make `name` the device behind torch's PrivateUse1 key, with `module` as `torch.<name>`."""
    rename_privateuse1_backend(name)
    torch._register_device_module(name, module)
    signal_handlers.let_handlers_wait()
    _KEEP_ALIVE.extend([_Hooks(module), _Guard()])
    _acc.register_python_privateuseone_hook(_KEEP_ALIVE[0])
    _acc.register_python_privateuseone_device_guard(_KEEP_ALIVE[1])


_KEEP_ALIVE: list[Any] = []


def trace_as_plain(cls: type[torch.Tensor]) -> None:
    """Let `make_fx`, and so `torch.func.linearize`, take tensors of this type that are not inputs as constants, like plain tensors.

    It traces into the operations of any other subclass instead, and loses the result.
    """
    from torch.fx.experimental import proxy_tensor

    proxy_tensor.HANDLED_TYPES = (*proxy_tensor.HANDLED_TYPES, cls)  # type: ignore[assignment]


class _Hooks(_acc.PrivateUse1Hooks):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self._module = module

    def is_available(self) -> bool:
        return bool(self._module.is_available())

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True


class _Lost(threading.local):
    """The exception that was set when torch called the device guard of this thread."""

    error: BaseException | None = None


_lost = _Lost()
_ENDED = zip()  # an exhausted iterator


def deaf_to_signals(function: _Function) -> _Function:
    """`function`, changed to run no signal handler before its body: what a handler raises there would escape the body's `try`.

    Python looks for signals where a frame begins (opcode RESUME 0), and not where one goes on after `yield from` (RESUME 2).
    """
    code = function.__code__
    instructions = bytearray(code.co_code)
    instructions[2 * instructions[::2].index(opmap["RESUME"]) + 1] = 2
    function.__code__ = code.replace(co_code=bytes(instructions))
    return function


def _kind(asking: list[bool] = signal_handlers.asking, kind: Any = torch._C._autograd.DeviceType.PrivateUse1) -> Any:
    asking[0] = False
    return kind


@deaf_to_signals
def _ask(guard: Any, ended: Any = _ENDED, lost: Any = _lost, asking: list[bool] = signal_handlers.asking, answer: Any = _kind) -> Any:
    """What torch calls next, when it has looked up the guard's method. Until then no handler of a signal may raise: see `signal_handlers`.

    Only locals are read: while an exception leaves torch's engine, its destructors ask this. An exception that is still set when Python
    returns would abort the process, so it is cleared here, and raised again by `guarded_engine`. Each operation with a gradient asks up to
    three times: a loop over an exhausted iterator raises an exception that is set (except StopIteration) in less time than any call.
    """
    try:
        for _ in ended:
            pass
    except BaseException as error:
        lost.error = error
    asking[0] = True
    return answer


class _Guard(_acc.DeviceGuard):
    type_ = property(_ask)


def guard_engine(is_ours: Callable[[Any], bool], enter: Callable[[], None]) -> None:
    """Make torch's autograd engine work for a device made in Python, in backward passes from outputs that `is_ours` accepts.

    They run in the calling thread (the engine has threads for one device only), and exceptions inside them reach the caller.
    enter: called before every backward pass.
    """
    from torch.autograd import graph

    run = graph._engine_run_backward

    @functools.wraps(run)
    def guarded_engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        enter()
        if not any(is_ours(output) for output in outputs):
            return run(outputs, *args, **kwargs)
        _lost.error = None
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return run(outputs, *args, **kwargs)
        except SystemError as none_set:
            error, _lost.error = _lost.error, None
            if error is None:
                if "without setting an exception" not in str(none_set):
                    raise
                error = StopIteration()  # which the guard's loop takes for its own end
            raise error from None

    never_trace(guarded_engine.__code__)  # type: ignore[attr-defined]
    graph._engine_run_backward = guarded_engine  # type: ignore[assignment]
    torch.autograd._engine_run_backward = guarded_engine  # type: ignore[assignment,attr-defined]


def redirect_moves(default: Callable[[], torch.device]) -> None:
    """Let functions that copy data in C++ take our device without an index for `default()`: torch asks no Python guard there."""
    device_type = default().type

    def indexed(device: Any) -> Any:
        if isinstance(device, torch.device):
            return default() if device.type == device_type and device.index is None else device
        return default() if type(device) is str and device == device_type else device

    def redirect(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def redirected(source: Any, *args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs = {**kwargs, "device": indexed(kwargs["device"])}
            return function(source, *[indexed(arg) for arg in args], **kwargs)

        return redirected

    _device._device_constructors()  # torch caches these constructors, which take a default device: now, before they are redirected
    for owner, name in ((torch.Tensor, "to"), (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray")):
        setattr(owner, name, redirect(getattr(owner, name)))


_HOST_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# The C++ tensor behind a Python tensor: set to the one of another tensor, or read without autograd history.
set_cpp_data: Callable[[torch.Tensor, torch.Tensor], None] = torch.Tensor.data.__set__  # type: ignore[attr-defined]
cpp_data: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.data.__get__  # type: ignore[attr-defined]
# The C++ storage, which tensors that share data share.
cpp_storage: Callable[[torch.Tensor], torch.UntypedStorage] = torch.Tensor.untyped_storage
# Whether modules swap their parameters with moved ones, instead of setting their data.
swaps_parameters: Callable[[], bool] = torch.__future__.get_swap_module_params_on_conversion
# The `__torch_dispatch__` of classes whose operations are those of C++.
NO_TORCH_DISPATCH: Any = torch.Tensor.__torch_dispatch__
# Whether a tensor may get the data of another: modules ask this when they move their parameters.
may_get_data: Callable[[torch.Tensor, torch.Tensor], bool] = torch._has_compatible_shallow_copy_type
# The number of references to a tensor in C++: by its Python object, by the tensor whose gradient it is, by autograd graphs that saved it.
count_holders: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
# A tensor of a subclass over the data of another tensor: without its history, and with it.
make_subclass: Callable[..., Any] = torch.Tensor._make_subclass
as_subclass: Callable[..., Any] = torch.Tensor.as_subclass


def make_bridge(cls: type, size: Any, strides: Any, offset: int, dtype: torch.dtype, device: torch.device) -> Any:
    """A wrapper whose data C++ also gives to tensors on the CPU: it has the CPU's key besides our own, which outranks it."""
    bridge = make_wrapper(
        cls, size, strides, offset, None, dtype, torch.strided, device, False, False, None, False, False, _HOST_KEY
    )  # not pinned, without gradient; C++ asks Python for no property of it
    torch._C._set_throw_on_mutable_data_ptr(bridge)
    return bridge


def replace_in_torch(replacements: Mapping[tuple[Any, str], Callable[[Any], Any]]) -> None:
    """Replace attributes of torch (`(owner, name)`), each by the result of its function. `torch.compile` does not trace replacements."""
    for (owner, name), make in replacements.items():
        replacement = make(getattr(owner, name))
        if isinstance(replacement, FunctionType):
            owned_by = "" if isinstance(owner, ModuleType) else f"{owner.__qualname__}."
            replacement.__name__ = name  # dynamo finds methods of tensors by name, and pickle functions of modules
            replacement.__qualname__ = f"{owned_by}{name}"
            replacement.__module__ = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        setattr(owner, name, replacement)
        for function in (replacement, getattr(replacement, "fget", None), getattr(replacement, "fset", None)):
            if isinstance(function, FunctionType):
                never_trace(function.__code__)


CppGenerator: Any = torch._C.Generator
CppStream: Any = torch.Stream
CppEvent: Any = torch.Event


def class_by_device(own: type, ours: Callable[..., Any], by_default: bool = False) -> type:
    """A class that stands for torch's `own`: calls for our device call `ours`, all others `own`.

    by_default: whether a call that names no device is for ours: if torch means its accelerator.
    """

    kinds = (own, ours) if isinstance(ours, type) else (own,)

    class ByDevice(type(own)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not stand_in:
                return super().__call__(*args, **kwargs)
            device = kwargs.get("device", args[0] if args else None)
            device_type = None if device is None or isinstance(device, int) else torch.device(device).type
            for_us = by_default if device_type is None else device_type == torch._C._get_privateuse1_backend_name()
            return (ours if for_us else own)(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kinds) if cls is stand_in else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, own) if cls is stand_in else super().__subclasscheck__(subclass)

    stand_in = ByDevice(own.__name__, (own,), {"__module__": "torch", "__doc__": own.__doc__})
    return stand_in


def pins_for_others(device: Any) -> torch.device | None:
    """The device of torch's own for which memory of the host is pinned; None if it is our device or there is none."""
    device_type = None if device is None else torch.device(device).type
    return torch.device("cuda") if device_type in (None, "cuda") and torch.cuda.is_available() else None


def serve_accelerator(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Serve the functions of `torch.accelerator` that call C++, which cannot ask a device that was added from Python."""
    for name, function in functions.items():
        private = f"_accelerator_{name}"
        if hasattr(torch._C, private):
            never_trace(getattr(function, "__func__", function).__code__)  # torch.compile asks for streams while it runs
            setattr(torch._C, private, function)


def in_forward_mode() -> bool:
    """Whether this thread's operations carry tangents."""
    from torch.autograd import forward_ad

    return forward_ad._current_level >= 0


def watch_forward_mode(opened: Callable[[], None], closed: Callable[[], None]) -> None:
    """Call `opened` before forward-mode differentiation begins and `closed` after it has ended."""
    from torch.autograd import forward_ad

    enter, leave = forward_ad.enter_dual_level, forward_ad.exit_dual_level

    @functools.wraps(enter)
    def enter_dual_level() -> int:
        if forward_ad._current_level < 0:
            opened()
        return int(enter())  # type: ignore[no-untyped-call]

    @functools.wraps(leave)
    def exit_dual_level(*, level: int | None = None) -> None:
        leave(level=level)  # type: ignore[no-untyped-call]
        if forward_ad._current_level < 0:
            closed()

    forward_ad.enter_dual_level = enter_dual_level
    forward_ad.exit_dual_level = exit_dual_level


def excluding_key(key: str) -> Any:
    """A context manager inside which the dispatcher of this thread skips a dispatch key."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def foreach_types() -> tuple[list[Any], ...]:
    """The lists of exact tensor types for which torch itself chooses list operations: in its optimizers, and in its utilities."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    return (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types)


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def complete_momenta_of_sgd(
    complete: Callable[[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor | None], bool], bool],
) -> None:
    """Call `complete(parameters, gradients, momenta, dampened)` before each update of SGD with momentum.

    It may fill in momenta that do not exist yet. It returns whether all of them are new: then nothing is dampened, since torch does not
    dampen the first step.
    """
    from torch.optim import sgd

    def completing(update: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(update)
        def updated(
            params: list[torch.Tensor],
            grads: list[torch.Tensor],
            momenta: list[torch.Tensor | None],
            *,
            momentum: float,
            dampening: float,
            **options: Any,
        ) -> None:
            if momentum != 0 and complete(params, grads, momenta, dampening != 0):
                dampening = 0.0 if isinstance(dampening, float) else 0
            update(params, grads, momenta, momentum=momentum, dampening=dampening, **options)

        return updated

    for name in ("_single_tensor_sgd", "_multi_tensor_sgd", "_fused_sgd"):
        setattr(sgd, name, completing(getattr(sgd, name)))


def radam_in_lists(applies: Callable[[torch.Tensor], bool]) -> None:
    """Let RAdam use its list form if all parameters satisfy `applies`: its loop over parameters branches in Python at its sixth step."""
    from torch.optim import radam

    loop = radam._single_tensor_radam

    @functools.wraps(loop)
    def loop_or_lists(params: list[torch.Tensor], *state: Any, differentiable: bool, **options: Any) -> None:
        lists = bool(params) and not differentiable and all(map(applies, params))
        step = radam._multi_tensor_radam if lists else loop
        step(params, *state, differentiable=differentiable, **options)

    radam._single_tensor_radam = loop_or_lists


def adam_by(update: Callable[..., bool]) -> None:
    """Let `update` replace the updates of Adam and AdamW, for lists and for single parameters, which compute the same.

    If it returns False, or a mode watches, torch's own update runs.
    """
    from torch.optim import adam

    def taken_over(usual: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(usual)
        def update_or_usual(*state: Any, **options: Any) -> None:
            if torch.compiler.is_compiling() or _watched() or not update(*state, **options):
                usual(*state, **options)

        return update_or_usual

    adam._multi_tensor_adam = taken_over(adam._multi_tensor_adam)
    adam._single_tensor_adam = taken_over(adam._single_tensor_adam)


def _watched() -> bool:
    """Whether this thread is in a mode that sees operations; the mode of the default device does not count: it only changes factories."""
    if has_dispatch_modes():
        return True
    modes = torch.overrides._get_current_function_mode_stack() if torch._C._len_torch_function_stack() else ()
    return any(type(mode) is not _device.DeviceContext for mode in modes)


# The functions that stand for `with torch.autocast(...)` in traced graphs.
enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
exit_autocast: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast
# The module of the functions that begin and end a transform of torch.func in traced graphs.
FUNCTION_TRANSFORMS_IN = "torch._C._functorch"


def never_trace(code: CodeType) -> None:
    """Keep `torch.compile` from tracing frames of `code`, and everything that they call."""
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(code, _eval_frame._FrameExecStrategy(skip, skip))


def infer_before_dynamo() -> Callable[[], None]:
    """Let torch's decompositions run without importing dynamo. Returns a function that ends this, to be called once dynamo is imported.

    Many import dynamo at their first call, to ask it not to trace them: more than half a second, in a process that traces nothing.
    """
    asking: CodeType = _compile._disable_dynamo(lambda: None).__code__
    decorated: set[FunctionType] = set()  # functions that are not to be traced
    for table in torch._decomp.global_decomposition_table.values():
        for decomposition in table.values():
            function: Any = decomposition
            while isinstance(function, FunctionType):  # the functions that it wraps, from outside in
                cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
                wrapped = cells["fn"].cell_contents if "fn" in cells else None
                if function.__code__ is asking and wrapped is not None:
                    decorated.add(wrapped)
                function = wrapped
    for function in decorated:
        vars(function)["__dynamo_disable"] = function  # where torch looks for the function that dynamo made of it

    def end() -> None:
        for function in decorated:
            vars(function).pop("__dynamo_disable", None)

    return end


def between_graphs(function: _Function) -> _Function:
    """`function`, which `torch.compile` calls between its graphs and never traces; with fullgraph=True that is its error."""
    never_trace(function.__code__)
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="it calls JAX, or moves data between tensors")
    return function


def trace_as_plain_tensor(builder: Any, cls: type) -> None:
    """Let `torch.compile` treat instances of `cls` as it treats torch.Tensor (`builder`: torch._dynamo.variables.builder)."""
    make = builder.VariableBuilder
    for trace_numpy in (False, True):
        make._type_dispatch_impl(trace_numpy)[cls] = make.wrap_tensor
    subclass_of = builder.infer_subclass_type

    def infer_subclass_type(value: Any) -> Any:
        return None if type(value) is cls else subclass_of(value)

    builder.infer_subclass_type = infer_subclass_type


def trace_constants_on_the_host(cls: type) -> None:
    """While torch traces with fake tensors, `torch.tensor(data, device=ours)` first makes a CPU constant that the tracers know.

    They ask whether our device is available only for this; the answer no also keeps them from starting it. A result that they compute from
    such a constant on the device, of class `cls`, is no constant: they would compute further with it below Python.
    """
    from torch._subclasses import fake_tensor

    vars(fake_tensor)["_is_privateuse1_backend_available"] = lambda: False
    own = fake_tensor.FakeTensorMode.may_turn_const
    fake_tensor.FakeTensorMode.may_turn_const = lambda mode, tensor: type(tensor) is not cls and own(mode, tensor)  # type: ignore[assignment,method-assign]


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in the form in which torch's ahead-of-time autograd calls compiled graphs: with one list of all arguments."""
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]

    with_list: Callable[..., Any] = make_boxed_func(function)
    return with_list


def ahead_of_time(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """The backend of `torch.compile` that calls `compiler` with graphs of aten operations, forward and backward graphs."""
    from torch._dynamo.backends.common import aot_autograd

    backend: Callable[..., Any] = aot_autograd(fw_compiler=compiler)
    return backend


INDUCTOR_STARTS_IN = "torch._inductor.compile_fx"


def before_device_meshes(own_type: str, ready: Callable[[], object]) -> None:
    """Call `ready` before each construction of torch's DeviceMesh for this type of device, until another `__new__` replaces this one."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.device_mesh import DeviceMesh

    def new(cls: type, device_type: str = "", *_: Any, **__: Any) -> Any:  # torch passes it by this name, too
        if device_type == own_type:
            ready()
        make: Any = DeviceMesh.__new__
        return object.__new__(cls) if make is new else make(cls, device_type)

    DeviceMesh.__new__ = new  # type: ignore[method-assign]


def check_before_inductor(module: Any, check: Callable[[Iterable[Any]], None]) -> None:
    """Call `check` with the example values with which torch traced a graph, before torch's own compiler gets it.

    module: INDUCTOR_STARTS_IN.
    """
    own = module.compile_fx

    @functools.wraps(own)
    def compile_fx(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
        check([*inputs, *[node.meta.get("example_value") for node in nodes]])
        return own(model, inputs, *args, **kwargs)

    module.compile_fx = compile_fx


def constructor_mover(target: str) -> Any:
    """Torch's pass that moves constructors of a traced graph from the CPU to devices of type `target`, if only those use them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # by torch's own code
        from torch._inductor.fx_passes.post_grad import ConstructorMoverPass

    return ConstructorMoverPass(target)


# Whether this thread is in modes that see each operation.
has_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
has_function_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_watched() -> bool:
    """Whether something observes calls of torch's dispatcher: a mode, a function transform, a profiler, `torch.compile`."""
    return bool(torch.compiler.is_compiling() or has_dispatch_modes() or has_function_transforms() or _profiler._is_profiler_enabled)


@contextmanager
def hidden_from_modes(*, all_of_them: bool = False) -> Iterator[None]:
    """Leave the dispatch modes, innermost first, that ignore code compiled by torch.compile (torch has one itself); or all of them."""
    with ExitStack() as stack:
        while (mode := _python_dispatch._get_current_dispatch_mode()) is not None and (all_of_them or mode.ignore_compile_internals()):
            stack.enter_context(_python_dispatch._pop_mode_temporarily())
        yield


def saved_tensors_are_hooked() -> bool:
    """Whether hooks around this code, such as a checkpoint's, take the tensors that operations save for their gradients."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


# A context in which a module has other tensors in place of its parameters and buffers.
reparametrized: Any = stateless._reparametrize_module


@contextmanager
def without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Differentiate by `tensors` without running their hooks."""
    hooks = [(hooks_of_tensor, dict(hooks_of_tensor)) for tensor in tensors if (hooks_of_tensor := tensor._backward_hooks)]
    for hooks_of_tensor, _ in hooks:
        hooks_of_tensor.clear()
    try:
        yield
    finally:
        for hooks_of_tensor, before in hooks:
            hooks_of_tensor.update(before)


def serve_higher_order(name: str, cls: type, function: Callable[..., Any], serves: Callable[..., bool]) -> None:
    """Let torch's higher-order operator `name` call `function` for tensors of the device, of class `cls` or not, also under autograd.

    serves: returns whether it does so for these arguments; else, such as when torch traces, torch's own function is called.
    """
    operator = getattr(torch.ops.higher_order, name)
    keys = torch._C.DispatchKey
    own = operator.py_kernels[keys.Autograd]

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if serves(*args, *kwargs.values()) else own(*args, **kwargs)

    operator.py_impl(cls)(function)
    operator.py_impl(keys.PrivateUse1)(function)
    operator.py_impl(keys.AutogradPrivateUse1)(run)


def higher_order_function(operator: Any) -> Callable[..., Any]:
    """The function that runs a higher-order operator on the device: its rule for the device, else its rule for the CPU."""
    keys = torch._C.DispatchKey
    served = keys.PrivateUse1 in operator.py_kernels
    function: Callable[..., Any] = operator if served else operator.py_kernels.get(keys.CompositeExplicitAutograd, operator)
    return function


def run_higher_order_on(operator: Any, cls: type) -> None:
    """Let a higher-order operator run on tensors of class `cls` as on CPU tensors, unless it has a rule for the class."""
    dense = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if dense is not None and cls not in operator.python_key_table:
        operator.py_impl(cls)(dense)


def pass_autocast_in_higher_order() -> None:
    """Let torch's higher-order operators pass autocast of the device through, like autocast of the CPU, to the operations inside."""
    key: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)  # operators that are defined later
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)


RANDOM_STATES_DEFINED_IN = "torch._prims.rng_prims"


def serve_random_states(module: Any, cls: type, save: Callable[..., Any], repeat: Callable[..., Any]) -> None:
    """Let the operators with which a compiled backward graph repeats a forward graph's random numbers run on the device.

    module: RANDOM_STATES_DEFINED_IN. cls: the class of the device's tensors. save: `(op, *args, **kwargs) -> (state, result)`.
    repeat: `(state, op, *args, **kwargs) -> result`.
    """
    keys = torch._C.DispatchKey
    for served, function in ((module.run_and_save_rng_state, save), (module.run_with_rng_state, repeat)):
        served.py_impl(cls)(function)
        served.py_impl(keys.PrivateUse1)(function)
    of_others = module.run_and_save_rng_state.py_kernels[keys.BackendSelect]

    def by_device(op: Any, *args: Any, **kwargs: Any) -> Any:  # no tensor among the arguments
        ours = torch.device(kwargs.get("device") or "cpu").type == "xla"
        return save(op, *args, **kwargs) if ours else of_others(op, *args, **kwargs)

    module.run_and_save_rng_state.py_kernels[keys.BackendSelect] = by_device


def keep_kernels_at_exit() -> None:
    """Let no kernel that Python registered be taken out of torch while the process ends: daemon threads may still call it."""
    finalizers: Any = weakref.finalize
    for finalizer in tuple(finalizers._registry):
        alive = finalizer.peek()
        if alive is not None and isinstance(alive[0], torch.library.Library):
            finalizer.atexit = False


def is_transformed(tensor: Any) -> bool:
    """Whether a transform of `torch.func` wraps a tensor: a batch of `vmap`, a tangent, a gradient."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def reads_data(function: Any) -> bool:
    """Whether a function that a function mode sees is the getter of `Tensor.data`. Looked up late: xla tensors replace the property."""
    return bool(function == torch.Tensor.data.__get__)  # type: ignore[attr-defined]


def changed_program(program: torch.export.ExportedProgram, module: torch.fx.GraphModule, signature: Any) -> torch.export.ExportedProgram:
    """An exported program with another graph and signature, over the same tensors."""
    return program._update(module, signature)
