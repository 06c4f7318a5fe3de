"""What peft, accelerate and transformers save from xla by their defaults is what they save from the CPU, and loads with its ties."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.modeling_utils import PreTrainedModel

import torch_xla

WORDS = 64


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """accelerate keeps its state in the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """Its embedding is its head."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=1, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def adapted(model: PreTrainedModel) -> PeftModel:
    """With adapters, of which no half is zeros, and a trained copy of the last norm."""
    settings = LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["ln_f"], init_lora_weights=False, fan_in_fan_out=True)
    return get_peft_model(model, settings)


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    words = torch.randint(0, WORDS, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in words]


def weights(folder: Path) -> dict[str, bytes]:
    """All files of tensors in a folder."""
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


def test_pretrained_models_are_saved_once_for_all_their_ties(tmp_path: Path) -> None:
    for device in ("cpu", "xla"):
        gpt2().to(device).save_pretrained(tmp_path / device)
    assert weights(tmp_path / "xla") == weights(tmp_path / "cpu") != {}
    assert "lm_head.weight" not in load_file(tmp_path / "xla" / "model.safetensors")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "xla").to("xla")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_adapters_are_saved_and_loaded(tmp_path: Path, assert_same_weights: Callable[..., None]) -> None:
    cpu = adapted(gpt2())
    copy.deepcopy(cpu).to("xla").save_pretrained(tmp_path / "xla")
    cpu.save_pretrained(tmp_path / "cpu")
    assert weights(tmp_path / "xla") == weights(tmp_path / "cpu") != {}
    assert_same_weights(PeftModel.from_pretrained(gpt2().to("xla"), tmp_path / "xla"), cpu, 0.0)


def prepared() -> tuple[Accelerator, Any, Callable[[], float]]:
    """An accelerator, its model, and a step that gives the loss."""
    accelerator, model = Accelerator(), gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    words = torch.stack([row["input_ids"] for row in rows(2)]).to(accelerator.device)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        return float(loss.item())

    return accelerator, model, step


def test_a_state_that_accelerate_loads_trains_on_as_before(tmp_path: Path) -> None:
    accelerator, model, step = prepared()
    step()
    accelerator.save_state(str(tmp_path))
    expected = [step() for _ in range(3)]
    accelerator.load_state(str(tmp_path))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert [step() for _ in range(3)] == expected
    assert len(set(expected)) == 3


def test_a_model_that_accelerate_saves_is_that_of_the_cpu(tmp_path: Path) -> None:
    accelerator, model, _ = prepared()
    accelerator.save_model(model, str(tmp_path))
    found = load_file(tmp_path / "model.safetensors")
    expected = gpt2().state_dict()
    assert expected.keys() - found.keys() == {"lm_head.weight"}
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def trainer(folder: Path, steps: int) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=2, learning_rate=1e-2, lr_scheduler_type="constant", report_to=[],
        disable_tqdm=True, per_device_train_batch_size=4,
    )  # fmt: skip
    return Trainer(model=gpt2(), args=arguments, train_dataset=rows(24))


def test_a_trainer_resumes_from_its_checkpoint(tmp_path: Path, assert_same_weights: Callable[..., None]) -> None:
    whole = trainer(tmp_path / "whole", 4)
    whole.train()
    assert whole.args.device.type == "xla"
    trainer(tmp_path / "parts", 2).train()
    resumed = trainer(tmp_path / "parts", 4)
    resumed.train(resume_from_checkpoint=True)
    torch_xla.sync()
    assert resumed.model.lm_head.weight is resumed.model.transformer.wte.weight
    assert_same_weights(resumed.model.cpu(), whole.model.cpu(), 1e-6)
