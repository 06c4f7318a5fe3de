"""transformers.Trainer with FSDP for XLA on two replicas: losses and the consolidated weights are those of the CPU alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def test_a_sharded_gpt_with_checkpointed_layers_trains_and_is_saved_whole(run_program: Callable[..., Any]) -> None:
    sharded = run_program("gpt2_fsdp", "sharded", CPU_NUM_DEVICES="2")
    plain = run_program("gpt2_fsdp", "plain")
    assert sharded["size"] == 2 and sharded["wrapper"] == "XlaFullyShardedDataParallel"
    assert sharded["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert sharded["weights"].keys() == plain["weights"].keys()
    for name, value in plain["weights"].items():
        torch.testing.assert_close(torch.tensor(sharded["weights"][name]), torch.tensor(value), rtol=1e-3, atol=1e-4)
