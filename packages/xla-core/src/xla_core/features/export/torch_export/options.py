"""Options of exporting a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xla_core.base.errors import UnsupportedOperationError


@dataclass(slots=True)
class StableHLOExportOptions:
    """Options of an export, which reads them when it begins.

    override_tracing_arguments, override_tracing_kwargs: inputs to trace with, instead of the exported program's examples.
    save_weights: write `data/` when saving. export_weights: keep weights in the bundle; if off, `state_dict` is empty, and its owner fills
        it before a call. include_human_readable_text: keep the module's text beside the bytecode.
    inline_all_constant: put constant tensors into the module; if off, they are inputs, and kept in `constants/`.
    custom_ops_allowed_in_graph: namespaces of torch's custom operations, or their names, that become custom calls of that name.
    export_node_metadata: must stay off; it is not supported.
    """

    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: dict[str, Any] | None = None
    save_weights: bool = True
    custom_ops_allowed_in_graph: frozenset[str] | set[str] = frozenset()
    include_human_readable_text: bool = True
    export_node_metadata: bool = False
    inline_all_constant: bool = True
    export_weights: bool = True

    def check(self) -> None:
        """Raise UnsupportedOperationError for options that are not supported."""
        if self.export_node_metadata:
            raise UnsupportedOperationError("export_node_metadata is not supported: XLA_HLO_DEBUG=1 puts the user's lines into the module")
