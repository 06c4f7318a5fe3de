"""Sharded safetensors of the Hugging Face hub: what transformers and huggingface_hub write is read, what we write they read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from huggingface_hub import load_torch_model, save_torch_state_dict, snapshot_download
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import torch_xla.core.xla_model as xm
import xla_serialization

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
NAME, REVISION = "someone/small", "0123456789abcdef0123456789abcdef01234567"
SHARD = 60_000
"""Bytes: several files."""


@pytest.fixture
def model() -> PreTrainedModel:
    """With tied embeddings."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=1)).eval()


def logits(model: torch.nn.Module, device: str = "cpu") -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS.to(device)).logits.cpu()
    return found


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_what_save_pretrained_writes_is_read(model: PreTrainedModel, tmp_path: Path, device: str) -> None:
    wanted, names = logits(model), set(model.state_dict()) - {"lm_head.weight"}
    # Of what is on the device transformers asks where it is in memory; Trainer, too, gives it this copy.
    state_dict = xm._maybe_convert_to_cpu(model.to(device).state_dict())
    model.save_pretrained(tmp_path, state_dict=state_dict, max_shard_size=SHARD)
    assert len(shards(tmp_path)) > 1
    found = xla_serialization.load(tmp_path, device="xla")
    assert set(found) == names, "of tied weights one is in the files"
    other = GPT2LMHeadModel(model.config).to("xla").eval()
    other.load_state_dict(found, strict=False)
    other.tie_weights()
    torch.testing.assert_close(logits(other, "xla"), wanted, rtol=1e-4, atol=1e-5)
    state = {name: torch.zeros_like(value) for name, value in other.state_dict().items() if name in names}
    xla_serialization.load_into(state, tmp_path)
    assert all(torch.equal(state[name].cpu(), value.cpu()) for name, value in found.items())


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_what_the_hubs_library_writes_is_read(model: PreTrainedModel, tmp_path: Path, device: str) -> None:
    state = {name: value.to(device) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_torch_state_dict(state, tmp_path, max_shard_size=SHARD)
    assert len(shards(tmp_path)) > 1
    found = xla_serialization.load(tmp_path)
    assert set(found) == set(state) and all(torch.equal(found[name], value.cpu()) for name, value in state.items())


def test_a_model_in_the_cache_is_read_where_the_library_finds_it(model: PreTrainedModel, tmp_path: Path) -> None:
    repository = tmp_path / "models--someone--small"
    snapshot, blobs = repository / "snapshots" / REVISION, repository / "blobs"
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    model.save_pretrained(tmp_path / "written", max_shard_size=SHARD)
    for number, file in enumerate(sorted((tmp_path / "written").iterdir())):
        file.rename(blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{number:064x}", snapshot))
    theirs = AutoModelForCausalLM.from_pretrained(NAME, cache_dir=tmp_path, local_files_only=True)
    ours = xla_serialization.load(snapshot_download(NAME, cache_dir=tmp_path, local_files_only=True), device="xla")
    for name, value in ours.items():
        assert torch.equal(theirs.state_dict()[name], value.cpu()), name


def test_transformers_and_the_hubs_library_read_what_we_write(model: PreTrainedModel, tmp_path: Path) -> None:
    wanted = logits(model)
    model.to("xla")
    xla_serialization.save(model.state_dict(), tmp_path, shard_bytes=SHARD)
    model.config.save_pretrained(tmp_path)
    assert len(shards(tmp_path)) > 1
    found = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(found), wanted) and found.lm_head.weight is found.transformer.wte.weight
    other = GPT2LMHeadModel(model.config).eval()
    load_torch_model(other, tmp_path, strict=False)
    assert torch.equal(logits(other), wanted)
