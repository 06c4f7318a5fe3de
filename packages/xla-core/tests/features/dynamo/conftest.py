"""Each test compiles anew, with nothing pending and the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
from xla_core.features.dynamo import config


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch_xla.sync()
    yield
    config.skip_input_data_check = False
    torch._dynamo.reset()
