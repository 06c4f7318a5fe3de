"""Networks of the sizes that people train on accelerators, in bfloat16, without weights: for targets only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import timm
import torch
import transformers as tf
from torch import nn

from case import Case, Entry, pictures, words
from image_models import Classifier, loss_of


def half(make: Callable[[], nn.Module]) -> nn.Module:
    """The network on `meta`."""
    with torch.device("meta"):
        return make().to(torch.bfloat16)


def images(name: str, batch: int) -> Case:
    """A classifier of timm, of images of 224 × 224 in a thousand classes."""
    model = Classifier(half(partial(timm.create_model, name, pretrained=False)))
    return Case(
        model,
        lambda step: {"images": pictures(step, batch, 3, 224, 224).to(torch.bfloat16), "labels": words(step, 1000, batch)},
        loss_of,
    )


def bert_base() -> Case:
    config = tf.BertConfig()

    def batch(step: int) -> dict[str, torch.Tensor]:
        tokens = words(step, config.vocab_size, 16, 512)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}

    return Case(half(lambda: tf.BertForMaskedLM(config)), batch)


def llama_block() -> Case:
    config = tf.LlamaConfig(
        hidden_size=4096, intermediate_size=14_336, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8, vocab_size=128_256,
        max_position_embeddings=4096,
    )  # fmt: skip

    def batch(step: int) -> dict[str, torch.Tensor]:
        tokens = words(step, config.vocab_size, 1, 4096)
        return {"input_ids": tokens, "labels": tokens, "use_cache": False}  # type: ignore[dict-item]

    return Case(half(lambda: tf.LlamaForCausalLM(config)), batch)


LARGE = (
    Entry("bert_base", "transformers", "16 × 512 words, bfloat16", bert_base),
    Entry("llama_8b_layer", "transformers", "a layer of Llama-3-8B, embedding and head, 4,096 words, bfloat16", llama_block),
    Entry("resnet50", "timm", "128 images of 224 × 224, bfloat16", partial(images, "resnet50", 128)),
    Entry("vit_b16", "timm", "64 images of 224 × 224, bfloat16", partial(images, "vit_base_patch16_224", 64)),
)
