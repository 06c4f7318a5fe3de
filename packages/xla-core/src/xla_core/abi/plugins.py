"""What a distribution may bring to the core, each part behind a protocol: collectives, a launcher, shardings, reports, checkpoints.

    >>> from xla_core.abi.plugins import Plugin, Reports
    >>> class OneLine:
    ...     def metrics_report(self) -> str:
    ...         return "nothing happened"
    ...     def short_metrics_report(self, counter_names=None, metric_names=None) -> str:
    ...         return self.metrics_report()
    ...     def profiler(self):
    ...         raise NotImplementedError("my-package has no profiler")
    >>> PLUGIN = Plugin(reports=OneLine)  # the entry point: "my-package" = "my_package.plugin:PLUGIN", in group "xla_core.plugins"

* `Plugin` has a function for each part, which gives an object of its protocol when the part is first needed, and `prepare`, which is called
  once, before the first question about the job and before the devices start.
* `CollectiveBackend` has the collectives of `xm` among several replicas, `Launcher` starts replicas, `ShardingBackend` has what
  `torch_xla._XLAC` says of shardings, `Reports` its reports, `CheckpointWriter` writes for `xm.save`. A module may be one of them: its
  functions are the methods. `xla_core.testing` has a contract suite for each.

Guarantees: the core has signatures, defaults, checks of arguments and docstrings of what users call; a part gets arguments that are right.
The module of the entry point is all that is loaded before a part is needed. Two plugins with one part are an error, which names both.
"""

from __future__ import annotations

from xla_core.api.backends import CheckpointWriter, CollectiveBackend, Launcher, Plugin, Reports, ShardingBackend

__all__ = ["CheckpointWriter", "CollectiveBackend", "Launcher", "Plugin", "Reports", "ShardingBackend"]
