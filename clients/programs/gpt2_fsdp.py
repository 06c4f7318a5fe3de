"""transformers.Trainer with FSDP for XLA on replicas of the CPU: a tiny GPT-2, layers checkpointed; reports losses and saved weights."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import torch_xla
import torch_xla.runtime as xr

WORDS, STEPS = 64, 4


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=1, use_cache=False,
        )
    )  # fmt: skip


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    """Equal ones, so that it does not matter which replica gets which."""
    row = torch.randint(0, WORDS, (8,), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for _ in range(count)]


def train(index: int, report: str, sharded: bool) -> None:
    output = Path(report).parent / ("sharded" if sharded else "plain")
    config = {"xla": True, "xla_fsdp_grad_ckpt": True, "xla_fsdp_settings": {}, "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    arguments = TrainingArguments(
        output_dir=str(output), max_steps=STEPS, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        learning_rate=1e-2, per_device_train_batch_size=2, max_grad_norm=0.0, fsdp=sharded, fsdp_config=config if sharded else None,
        use_cpu=not sharded,
    )  # fmt: skip
    trainer = Trainer(model=model(), args=arguments, train_dataset=samples(32))
    trainer.create_optimizer()  # transformers 5.23 forgets it when it wraps for XLA; parameters stay the same objects
    trainer.train()
    trainer.save_model(str(output))
    if index == 0:
        weights = load_file(output / "model.safetensors")
        found = {
            "size": xr.world_size() if sharded else 1,
            "wrapper": type(trainer.model_wrapped).__name__,
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "weights": {name: value.tolist() for name, value in weights.items()},
        }
        Path(report).write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    if sys.argv[2] == "sharded":
        torch_xla.launch(train, (sys.argv[1], True))
    else:
        train(0, sys.argv[1], False)


if __name__ == "__main__":
    main()
