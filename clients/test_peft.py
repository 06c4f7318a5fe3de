"""LoRA of peft on xla: only the adapters train, as on the CPU, and merging them gives the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

import torch_xla


def adapted() -> PeftModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    return get_peft_model(LlamaForCausalLM(config), LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]))


def trained(model: PeftModel, device: str) -> None:
    words = torch.randint(0, 64, (2, 6), generator=torch.Generator().manual_seed(0)).to(device)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        torch_xla.sync()


def test_training_steps_equal_the_cpu(assert_same_weights: Callable[..., None]) -> None:
    cpu = adapted()
    xla = copy.deepcopy(cpu).to("xla")
    before = {name: value.clone() for name, value in cpu.state_dict().items()}
    trained(cpu, "cpu")
    trained(xla, "xla")
    moved = {name for name, value in xla.state_dict().items() if not torch.equal(value.cpu(), before[name])}
    assert moved and all("lora_" in name for name in moved)
    assert_same_weights(xla, cpu, 1e-4)


def test_merging_the_adapters_equals_the_cpu(assert_same_weights: Callable[..., None]) -> None:
    cpu = adapted()
    for name, value in get_peft_model_state_dict(cpu).items():
        if "lora_B" in name:
            value.normal_(generator=torch.Generator().manual_seed(1))
    xla = copy.deepcopy(cpu).to("xla")
    assert_same_weights(xla.merge_and_unload(), cpu.merge_and_unload())
