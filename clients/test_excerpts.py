"""The excerpts of the documentation that use these libraries run: what stands around them is here."""

from __future__ import annotations

import copy
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, StaticCache
from trl import SFTTrainer

import torch_xla

DOCS = Path(__file__).resolve().parents[1] / "docs"
NEW = 6
Run = Callable[[str, dict[str, Any]], dict[str, Any]]


def excerpt(page: str, part: str) -> str:
    """The only one of a page that has this in it."""
    (found,) = (
        block for block in re.findall(r"^```py\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S) if part in block
    )
    return str(found)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs code with these names, and gives all that it leaves."""

    def run_code(code: str, names: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / "excerpt.py").write_text(code, encoding="utf-8")
        return runpy.run_path(str(tmp_path / "excerpt.py"), names)

    return run_code


@pytest.fixture
def cpu() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def names(cpu: LlamaForCausalLM) -> dict[str, Any]:
    """What the excerpts of text generation find."""
    prompt = torch.randint(2, 64, (2, 5), generator=torch.Generator().manual_seed(0)).to("xla")
    return {
        "torch": torch,
        "torch_xla": torch_xla,
        "StaticCache": StaticCache,
        "model": copy.deepcopy(cpu).to("xla"),
        "prompt": prompt,
        "new": NEW,
    }


def test_generate_with_a_captured_forward_pass(cpu: LlamaForCausalLM, names: dict[str, Any], run: Run) -> None:
    tokens = run(excerpt("models.md", "model.generate"), names)["tokens"]
    assert torch.equal(tokens.cpu(), cpu.generate(names["prompt"].cpu(), max_new_tokens=32, do_sample=False))


@torch.inference_mode()
def test_a_loop_over_a_static_cache(cpu: LlamaForCausalLM, names: dict[str, Any], run: Run) -> None:
    tokens = run(excerpt("performance.md", "StaticCache"), names)["tokens"]
    expected = cpu.generate(names["prompt"].cpu(), max_new_tokens=NEW, do_sample=False)
    assert torch.equal(torch.cat([names["prompt"], *tokens], 1).cpu(), expected)


def test_orbax(tmp_path: Path, run: Run) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to("xla")
    expected = {name: value.cpu() for name, value in model.state_dict().items()}
    saving, restoring = excerpt("checkpoints.md", "orbax").split("with jax", 1)
    left = run(saving, {"torch": torch, "model": model, "path": tmp_path / "state"})
    for value in model.state_dict().values():
        value.zero_()
    run("with jax" + restoring, left)
    for name, value in model.state_dict().items():
        assert torch.equal(value.cpu(), expected[name]) and value.dtype is expected[name].dtype


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One that knows the numbers below 60."""
    words = ["[PAD]", "[UNK]", "[EOS]", *map(str, range(60))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=64)


# Sentences that by themselves give batches of four lengths.
TEXTS = [" ".join(map(str, range(length))) for length in (3, 5, 33, 40)]


def test_lightning_on_the_devices_that_there_are(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = run(excerpt("libraries.md", "lightning.Trainer"), {})["trainer"]
    assert type(trainer.strategy).__name__ == "SingleDeviceXLAStrategy" and trainer.num_devices == 1


def test_a_collator_of_few_lengths(run: Run, tokenizer: PreTrainedTokenizerFast) -> None:
    collator = run(excerpt("libraries.md", "DataCollatorWithPadding"), {"tokenizer": tokenizer})["collator"]
    assert [collator([dict(tokenizer(text))])["input_ids"].shape[1] for text in TEXTS] == [32, 32, 64, 64]


def test_trl_pads_to_few_lengths(
    run: Run, tokenizer: PreTrainedTokenizerFast, cpu: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = run(excerpt("libraries.md", "SFTConfig"), {})["settings"]
    settings.per_device_train_batch_size = 1
    trainer = SFTTrainer(
        cpu, args=settings, train_dataset=Dataset.from_list([{"text": text} for text in TEXTS]), processing_class=tokenizer
    )
    lengths = [batch["input_ids"].shape[1] for batch in trainer.get_train_dataloader()]
    assert sorted(lengths) == [32, 32, 64, 64]


def test_sentence_transformers_pads_to_few_lengths(run: Run, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=63, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=64
    )
    BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    model = SentenceTransformer(modules=[Transformer(str(tmp_path / "bert")), Pooling(32)])
    collator = SentenceTransformerDataCollator(preprocess_fn=model.preprocess)
    run(excerpt("libraries.md", "processing_kwargs"), {"model": model})
    pairs = [{"anchor": text, "positive": other} for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]
    shapes = [(batch := collator([pair]))["anchor_input_ids"].shape + batch["positive_input_ids"].shape for pair in pairs]
    assert shapes == [(1, 32, 1, 64)] * 2 + [(1, 64, 1, 32)] * 2
