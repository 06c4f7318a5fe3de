"""The private names of jax and torch that this package needs, each behind a name that says what it is for.

A test uses every one, so that an upgrade that takes one away fails there first. Each is imported where it is used: the coordinator
of a job (`job/coordinator.py`) loads JAX's runtime library, but not jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from types import CodeType, FunctionType
from typing import Any

# How long JAX's runtime lets a process say nothing. The job's own server knows sooner, and does not end the others by a signal.
_SILENCE_SECONDS = 86400
_SHUTDOWN_SECONDS = 10


def never_trace_methods(cls: type) -> None:
    """Keep `torch.compile` from tracing the methods of a class, and all that they call."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    for entry in vars(cls).values():
        if isinstance(entry, FunctionType):
            eval_frame.set_code_exec_strategy(entry.__code__, eval_frame._FrameExecStrategy(skip, skip))


@cache
def clusters() -> Mapping[str, Any]:
    """The classes by which jax.distributed finds a cluster's manager, in its order.

    Each class has `is_env_present`, `get_coordinator_address`, `get_process_count`, `get_process_id` and `get_local_process_id`.
    """
    from jax._src import clusters as jax_clusters

    return {
        "Open MPI": jax_clusters.OmpiCluster,
        "Slurm": jax_clusters.SlurmCluster,
        "Cloud TPU on GKE": jax_clusters.GkeTpuCluster,
        "Cloud TPU": jax_clusters.GceTpuCluster,
        "Kubernetes": jax_clusters.K8sCluster,
    }


def runtime_service(address: str, size: int) -> Any:
    """Serve JAX's distributed runtime to a job's processes while the returned object lives; jax.distributed does so in process 0 only.

    The loss of one process does not end the others (`recoverable`). If the port is taken, the process dies by a signal.
    """
    from jaxlib import _jax

    return _jax.get_distributed_runtime_service(
        address, size, heartbeat_timeout=_SILENCE_SECONDS, shutdown_timeout=_SHUTDOWN_SECONDS, recoverable=True
    )


def join_runtime(address: str, size: int, rank: int, timeout: int) -> None:
    """Connect JAX to a runtime service that runs elsewhere: as `jax.distributed.initialize`, which would serve it in process 0.

    timeout: seconds. Raises RuntimeError if nobody answers, or if JAX's devices were used before.
    """
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX's devices were used before this process joined its job: use the xla device before other JAX code")
    client = _jax.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=timeout,
        heartbeat_timeout=_SILENCE_SECONDS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.coordinator_address, state.num_processes, state.process_id, state.client = address, size, rank, client


def recursive_wrap(*args: Any, **kwargs: Any) -> Any:
    """Wrap submodules as a policy says: what torch's own FSDP does with `auto_wrap_policy`."""
    from torch.distributed.fsdp import wrap

    return wrap._recursive_wrap(*args, **kwargs)


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    import torch

    return torch._C._current_graph_task_id() != -1


def after_backward(action: Callable[[], None]) -> None:
    """Let autograd call `action` after the backward pass that runs now; of nested ones, after the innermost."""
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(action)


class _SpecialDevice:
    """Equals a device type while `special()` is true; it replaces that type in the code of torch's functions."""

    def __init__(self, device_type: str, special: Callable[[], bool]) -> None:
        self.device_type = device_type
        self._special = special

    def __eq__(self, other: object) -> bool:
        return other == self.device_type and self._special()

    def __hash__(self) -> int:
        return hash(self.device_type)


def make_special_only_if(device_type: str, special: Callable[[], bool]) -> None:
    """Keep torch's special case for a device type in device meshes, `distribute_tensor` and `distribute_module` only while `special()`.

    They compare with the name of the type. The functions stay the same objects, since modules of torch import them from each other.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _api

    for function in (DeviceMesh.__init__, _api.distribute_tensor, _api.distribute_module):
        code: CodeType = function.__code__
        constants = tuple([_SpecialDevice(device_type, special) if constant == device_type else constant for constant in code.co_consts])
        function.__code__ = code.replace(co_consts=constants)


Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def handle_on_dtensors(handlers: Mapping[Any, Handler]) -> None:
    """Let each handler compute its operation when that is called on DTensors, as `handler(operation, args, kwargs)`."""
    from torch.distributed.tensor import DTensor

    DTensor._op_dispatcher._custom_op_handlers.update(handlers)


def keep_used_flags_on_host(device_type: str) -> None:
    """Let DistributedDataParallel keep on the host which parameters a pass used, for models on devices of this type.

    It copies these flags to the device from pinned memory, which C++ has for no device that was added from Python.
    """
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    original: Any = dist.Reducer  # type: ignore[attr-defined]

    class FlagsOnHost(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            if func is torch.ops.aten.empty.memory_format and options.get("dtype") is torch.int32:
                options = {**options, "device": torch.device("cpu")}
            return func(*args, **options)

    class Reducer(original):  # type: ignore[misc]
        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            self._flags_mode: Callable[[], Any] = FlagsOnHost if parameters[0].device.type == device_type else nullcontext
            with self._flags_mode():
                super().__init__(parameters, *args, **kwargs)

        def _set_static_graph(self) -> None:
            with self._flags_mode():
                super()._set_static_graph()

    dist.Reducer = Reducer  # type: ignore[attr-defined, assignment]


_BFLOAT16_HOOKS = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def allow_bfloat16_hooks(device_type: str) -> None:
    """Allow DistributedDataParallel's bfloat16 hooks for models on devices of this type: torch asks for CUDA."""
    from torch.nn.parallel import DistributedDataParallel

    original: Any = DistributedDataParallel._check_comm_hook

    def check(self: Any, hook: Any) -> None:
        if self.device_type != device_type or getattr(hook, "__name__", "") not in _BFLOAT16_HOOKS:
            original(self, hook)

    DistributedDataParallel._check_comm_hook = check  # type: ignore[method-assign]


def compare_parameters_if(wanted: Callable[[], object]) -> None:
    """Let DistributedDataParallel compare the parameters of all replicas only where `wanted()` is true: it reads them on the host."""
    from torch.nn.parallel import distributed

    module: Any = distributed
    original = module._verify_param_shape_across_processes

    def verify(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if wanted() else None

    module._verify_param_shape_across_processes = verify


def stage_by_copying(device_type: str) -> None:
    """Let `async_save` of torch's checkpoints copy tensors of this device type to the CPU: they have no storage that it could copy."""
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    original: Any = StateDictStager._offload_tensor

    def offload(self: Any, x: Any, memo: dict[int, Any], non_blocking: bool = False) -> Any:
        if x.device.type != device_type or is_traceable_wrapper_subclass(x):  # those have tensors of that type inside
            return original(self, x, memo, non_blocking)
        memo[id(x)] = x.detach().cpu()
        return memo[id(x)]

    StateDictStager._offload_tensor = offload  # type: ignore[method-assign]
