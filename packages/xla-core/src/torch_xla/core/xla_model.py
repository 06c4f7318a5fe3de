"""Devices, steps, collectives, random state and the rest of the model-level API (alias `xm`)."""

from xla_core.api import collectives, conversion, devices, gradients, step_closures
from xla_core.api.arena import ToXlaTensorArena as ToXlaTensorArena
from xla_core.api.buckets import CoalescingBuckets as CoalescingBuckets
from xla_core.api.buckets import all_gather_bucketized as all_gather_bucketized
from xla_core.api.buckets import all_reduce_bucketized_gradients as all_reduce_bucketized_gradients
from xla_core.api.buckets import reduce_scatter_bucketized as reduce_scatter_bucketized
from xla_core.api.collectives import all_gather as all_gather
from xla_core.api.collectives import all_reduce as all_reduce
from xla_core.api.collectives import all_to_all as all_to_all
from xla_core.api.collectives import collective_broadcast as collective_broadcast
from xla_core.api.collectives import collective_permute as collective_permute
from xla_core.api.collectives import other_collective as _other_collective
from xla_core.api.collectives import recv as recv
from xla_core.api.collectives import reduce_scatter as reduce_scatter
from xla_core.api.collectives import send as send
from xla_core.api.conversion import send_cpu_data_to_device as send_cpu_data_to_device
from xla_core.api.devices import get_xla_supported_devices as get_xla_supported_devices
from xla_core.api.devices import is_xla_tensor as is_xla_tensor
from xla_core.api.devices import parse_xla_device as parse_xla_device
from xla_core.api.devices import set_replication as set_replication
from xla_core.api.devices import xla_device as xla_device
from xla_core.api.devices import xla_device_count as xla_device_count
from xla_core.api.devices import xla_device_hw as xla_device_hw
from xla_core.api.devices import xla_device_kind as xla_device_kind
from xla_core.api.devices import xla_real_devices as xla_real_devices
from xla_core.api.devices import xla_replication_devices as xla_replication_devices
from xla_core.api.gradients import broadcast_master_param as broadcast_master_param
from xla_core.api.gradients import optimizer_step as optimizer_step
from xla_core.api.gradients import reduce_gradients as reduce_gradients
from xla_core.api.library import XLA_LIB as XLA_LIB
from xla_core.api.library import optimization_barrier_ as optimization_barrier_
from xla_core.api.memory import MemoryInfo as MemoryInfo
from xla_core.api.memory import get_memory_info as get_memory_info
from xla_core.api.model import REDUCE_AND as REDUCE_AND
from xla_core.api.model import REDUCE_MAX as REDUCE_MAX
from xla_core.api.model import REDUCE_MIN as REDUCE_MIN
from xla_core.api.model import REDUCE_MUL as REDUCE_MUL
from xla_core.api.model import REDUCE_OR as REDUCE_OR
from xla_core.api.model import REDUCE_SUM as REDUCE_SUM
from xla_core.api.model import fork_rng as fork_rng
from xla_core.api.model import get_local_ordinal as get_local_ordinal
from xla_core.api.model import get_ordinal as get_ordinal
from xla_core.api.model import get_rng_state as get_rng_state
from xla_core.api.model import is_master_ordinal as is_master_ordinal
from xla_core.api.model import master_print as master_print
from xla_core.api.model import set_rng_state as set_rng_state
from xla_core.api.model import unlazy as unlazy
from xla_core.api.model import wait_device_ops as wait_device_ops
from xla_core.api.model import xrt_world_size as xrt_world_size
from xla_core.api.rendezvous import do_on_ordinals as do_on_ordinals
from xla_core.api.rendezvous import mesh_reduce as mesh_reduce
from xla_core.api.rendezvous import rendezvous as rendezvous
from xla_core.api.rendezvous import xla_rendezvous as xla_rendezvous
from xla_core.api.saving import save as save
from xla_core.api.step import mark_step as mark_step
from xla_core.api.step_closures import DeviceContext as DeviceContext
from xla_core.api.step_closures import add_step_closure as add_step_closure
from xla_core.features.export.stablehlo import get_stablehlo as get_stablehlo
from xla_core.features.export.stablehlo import get_stablehlo_bytecode as get_stablehlo_bytecode
from xla_core.legacy.rate_tracker import RateTracker as RateTracker
from xla_core.legacy.view_sharing import check_view_sharing as check_view_sharing

_all_gather_using_all_reduce = collectives.all_gather_using_all_reduce
_fetch_gradients = gradients.fetch_gradients
_get_all_reduce_token = collectives.get_all_reduce_token
_get_device_context = step_closures.device_context
_maybe_convert_to_cpu = conversion.maybe_convert_to_cpu
_run_step_closures = step_closures.run_step_closures
_xla_real_device = devices.xla_real_device
del collectives, conversion, devices, gradients, step_closures

__all__ = [name for name in dir() if not name.startswith("__") and name != "_other_collective"]

__getattr__ = _other_collective  # collectives of a plugin that the core does not know
