"""Errors of meshes, specs and shardings. Each subclasses the builtin that users of the API catch.

XlaError
├── MeshError (AssertionError)            ids, shape and names that make no mesh
├── AxisError (AssertionError)            a spec that names an axis wrongly: none of the mesh's, twice, or nested too deep
├── PartitionSpecError (ValueError)       a spec with an unknown name or with an entry that is none
├── DeviceCountError (AssertionError)     a mesh that is not over all devices of the job
├── AnnotationError (RuntimeError)        a tensor that cannot be sharded as asked: not in SPMD mode, or sharded otherwise already
├── ShardingError (ValueError)            a sharding that contradicts itself, or does not fit the tensor
├── TopologyError (ValueError)            the devices do not form the mesh that was asked for
└── PlacementError (NotImplementedError)  no set of physical axes has the size of a logical axis
"""

from __future__ import annotations

from xla_core.abi.process import XlaError


class MeshError(XlaError, AssertionError):
    """Device ids, shape and axis names that make no mesh."""


class AxisError(XlaError, AssertionError):
    """A partition spec splits by an axis that the mesh does not have, by one axis twice, or has a tuple inside a tuple."""


class PartitionSpecError(XlaError, ValueError):
    """A partition spec with an unknown axis name or with an entry that stands for nothing."""


class DeviceCountError(XlaError, AssertionError):
    """A mesh that is not over all devices of the job."""


class AnnotationError(XlaError, RuntimeError):
    """A tensor that cannot be sharded as asked: outside SPMD mode, or it is sharded otherwise already."""


class ShardingError(XlaError, ValueError):
    """A sharding that contradicts itself, or does not fit the tensor."""


class TopologyError(XlaError, ValueError):
    """The devices do not form the mesh that was asked for."""


class PlacementError(XlaError, NotImplementedError):
    """No set of free physical axes has the size of a logical axis."""
