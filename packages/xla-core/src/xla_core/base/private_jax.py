"""The private names of jax that the core needs, each behind a name that says what it is for.

A test imports every one, so that an upgrade of jax that removes one fails there first.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib.util
import inspect
import operator
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import api as _jax_api
from jax._src import dispatch as _jax_dispatch
from jax._src import distributed as _jax_distributed
from jax._src import xla_bridge
from jax._src.core import ShapedArray
from jax._src.interpreters import mlir as _jax_mlir
from jax._src.interpreters.pxla import batched_device_put
from jaxlib import _hlo, xla_client  # type: ignore[attr-defined]  # _hlo has no stubs
from jaxlib import _jax as _jax_runtime
from jaxlib.version import __version__ as _jaxlib_version

jaxlib_version = _jaxlib_version


class _JaxGarbage:
    """Frees the objects that jax's C++ code has dropped when `stop` is read, in C code alone."""

    free = staticmethod(_jax_runtime.collect_garbage)
    stop = property(operator.methodcaller("free"))


def free_jax_garbage_in_c() -> None:
    """Replace jax's callback of the garbage collector by a callable that runs no Python code.

    An exception that a signal raises in a Python callback, such as KeyboardInterrupt, is printed and lost.
    """
    for index, callback in enumerate(gc.callbacks):
        if getattr(callback, "__name__", "") == "_xla_gc_callback":
            # The collector calls it with "start" or "stop" and a dict: the dict itself if there is no such attribute.
            gc.callbacks[index] = functools.partial(getattr, _JaxGarbage())


_AT_FIRST_LOWERING = ("jaxlib.mlir.dialects.mhlo", "jaxlib.mlir.dialects.builtin")


def import_dialects() -> None:
    """Import the modules that jax imports at its first lowering. They register themselves in C++, so that an interrupted import cannot be
    repeated: import them in a thread, which neither Ctrl-C nor a deep recursion reaches.
    """

    def run() -> None:
        for name in _AT_FIRST_LOWERING:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)

    thread = threading.Thread(target=run, name="xla-imports")
    thread.start()
    thread.join()


def _put_by(batched: Callable[..., jax.Array]) -> Callable[[np.ndarray[Any, Any], jax.sharding.Sharding, jax.Device], jax.Array]:
    """`batched_device_put` for one array (7 µs, `jax.device_put` takes 50); `jax.device_put` in a jax where its signature differs."""
    if list(inspect.signature(batched).parameters)[:4] != ["aval", "sharding", "xs", "devices"]:
        return lambda array, sharding, device: jax.device_put(array, device)

    def put(array: np.ndarray[Any, Any], sharding: jax.sharding.Sharding, device: jax.Device) -> jax.Array:
        return batched(ShapedArray(array.shape, array.dtype), sharding, [array], [device])

    return put


# Makes a buffer of a NumPy array on a device, given the device and its sharding.
put_on_device = _put_by(batched_device_put)


_OverBuffers = Callable[[list[jax.Array]], list[jax.Array]]


def compile_module(module: bytes | str, device: jax.Device, options: dict[str, str]) -> _OverBuffers:
    """Compile a StableHLO module, with options of XLA, to a function over buffers of one device.

    jax itself only runs functions that it has traced.
    """
    return _over_buffers(device.client.compile_and_load(module, xla_client.DeviceList((device,)), _for_device(device, options)))


def compiled_bytes(module: bytes, device: jax.Device, options: dict[str, str]) -> bytes:
    """The executable of a StableHLO artifact, as bytes for `load_executable`. device: also one of a topology, which takes no data."""
    client: Any = device.client
    devices, compile_options = xla_client.DeviceList((device,)), _for_device(device, options)
    if not isinstance(client, _jax_runtime.CompileOnlyPyClient):
        return bytes(client.serialize_executable(client.compile_and_load(module, devices, compile_options)))
    from jax.extend.mlir import ir  # slow to import
    from jax.extend.mlir.dialects import stablehlo

    parsed = stablehlo.deserialize_portable_artifact(ir.Context(), module)  # this client takes no bytes
    return bytes(client.compile(parsed, executable_devices=devices, compile_options=compile_options).serialize())


def load_executable(serialized: bytes, device: jax.Device) -> _OverBuffers:
    """The executable that `compiled_bytes` made for a device like this, here or in another process. Raises RuntimeError for other bytes.

    jax's public way puts it into a pickle, which can run code when it is read.
    """
    devices = xla_client.DeviceList((device,))
    # The options say which device of this process it is for; else it is the one that it was compiled for, by number.
    return _over_buffers(device.client.deserialize_executable(serialized, devices, _for_device(device, {})))


def _for_device(device: jax.Device, options: dict[str, str]) -> Any:
    compile_options = xla_client.CompileOptions()
    compile_options.env_option_overrides = list(options.items())
    compile_options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    return compile_options


def _over_buffers(executable: Any) -> _OverBuffers:
    return lambda buffers: [per_device[0] for per_device in executable.execute_sharded(buffers).disassemble_into_single_device_arrays()]


def lowering_platform(device: jax.Device) -> str:
    """What jax's lowering rules call the device's platform: `cuda` or `rocm` where `jax.Device.platform` is `gpu`."""
    return str(device.client._raw_platform)


def register_jax_plugin(name: str, library: str, options: dict[str, Any]) -> None:
    """Make a PJRT plugin a platform of jax, ahead of jax's own. Raises RuntimeError for a library that cannot be loaded."""
    xla_bridge.register_plugin(name, library_path=library, options=options)


def answer_for_missing_cuda_libraries() -> None:
    """Give lowerings that ask for the version of cuSOLVER the one that jax's CUDA plugin was built with, where the library is missing.

    That is so where programs are compiled for GPUs that are not there; jax asks the library, which raises.
    """
    from jax._src.lib import cuda_versions  # None without the plugin

    if cuda_versions is None:
        return
    try:
        cuda_versions.cusolver_get_version()
    except RuntimeError:
        cuda_versions.cusolver_get_version = cuda_versions.cusolver_build_version  # type: ignore[attr-defined]


def serialized_hlo(text: str) -> bytes:
    """The HloModuleProto of a module's HLO text. Raises RuntimeError for a text that XLA cannot parse."""
    module: bytes = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return module


def varying_axes(array: Any) -> frozenset[str]:
    """The axes of the mesh over which an array inside a `shard_map` varies; empty outside of one."""
    aval: Any = jax.typeof(array)
    return frozenset(aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma)


def leave_runtime_to_parent() -> None:
    """In a forked child: keep the exit of this process from shutting down jax's clients, which would wait for the parent's threads.

    The connection to a job is shared with the parent, too: jax's exit hook would leave the job in the parent's name.
    """
    state = _jax_distributed.global_state
    # Not by functions of jax, which take a lock that a thread of the parent may have held.
    owned = [*xla_bridge._backends.values(), *filter(None, (state.client, state.service, state.preemption_sync_manager))]
    if not owned:
        return
    for hook in (_jax_api.clean_up, _jax_dispatch.wait_for_tokens):
        atexit.unregister(hook)
    state.client = state.service = state.preemption_sync_manager = None
    for item in (*owned, _jax_mlir.global_thread_pool):
        # Never destroyed: that would wait for threads that do not exist here.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
