"""Trains a tiny GPT-2 with transformers.Trainer and default arguments, evaluates and predicts; reports losses, places and weights."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import torch_xla  # noqa: F401

WORDS, SAMPLES = 64, 1001


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=1, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(0, WORDS, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    report = Path(sys.argv[1])
    arguments = TrainingArguments(
        output_dir=str(report.parent / "output"), max_steps=10, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        learning_rate=1e-3, per_device_eval_batch_size=100,
    )  # fmt: skip
    trainer = Trainer(model=model(), args=arguments, train_dataset=samples(80), eval_dataset=samples(10))
    trainer.train()
    predicted = trainer.predict(samples(SAMPLES)).predictions
    found = {
        "device": trainer.args.device.type,
        "pinned": trainer.args.dataloader_pin_memory,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "evaluated": trainer.evaluate()["eval_loss"],
        "predicted": predicted.shape,
        "sums": predicted.sum((1, 2)).tolist(),
        "weights": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
    }
    report.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
