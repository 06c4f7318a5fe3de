"""Twelve families of transformers, small, with their own losses."""

from __future__ import annotations

import torch
import transformers as tf

from case import Batch, Case, Entry, pictures, words

WORDS = 1000
WIDTH = {"vocab_size": WORDS, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def causal(model: tf.PreTrainedModel, batch: int = 4, tokens: int = 64) -> Case:
    """A model that predicts the next token."""

    def batch_of(step: int) -> Batch:
        tokens_in = words(step, WORDS, batch, tokens)
        return {"input_ids": tokens_in, "labels": tokens_in, "use_cache": False}

    return Case(model, batch_of)


def bert() -> Case:
    model = tf.BertForMaskedLM(tf.BertConfig(**WIDTH, **NO_DROPOUT))

    def batch(step: int) -> Batch:
        tokens, lengths = words(step, WORDS, 4, 64), torch.tensor([64, 50, 33 + step, 20])
        mask = (torch.arange(64) < lengths[:, None]).long()
        return {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}

    return Case(model, batch)


def gpt2() -> Case:
    config = tf.GPT2Config(
        vocab_size=WORDS, n_positions=128, n_embd=192, n_layer=4, n_head=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return causal(tf.GPT2LMHeadModel(config))


def llama() -> Case:
    return causal(tf.LlamaForCausalLM(tf.LlamaConfig(**WIDTH, num_key_value_heads=2, pad_token_id=0)))


def mixtral() -> Case:
    config = tf.MixtralConfig(**WIDTH | {"num_hidden_layers": 2}, num_key_value_heads=2, num_local_experts=4, output_router_logits=True)
    return causal(tf.MixtralForCausalLM(config))


def t5() -> Case:
    model = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=WORDS, d_model=192, d_kv=32, d_ff=512, num_layers=3, num_heads=6, dropout_rate=0.0, decoder_start_token_id=0)
    )

    def batch(step: int) -> Batch:
        source, target = words(step, WORDS, 4, 64), words(step + 100, WORDS, 4, 32)
        return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target, "use_cache": False}

    return Case(model, batch)


def vit() -> Case:
    sizes = {name: size for name, size in WIDTH.items() if name != "vocab_size"}
    model = tf.ViTForImageClassification(tf.ViTConfig(**sizes, **NO_DROPOUT, image_size=64, patch_size=8, num_labels=10))
    return Case(model, lambda step: {"pixel_values": pictures(step, 4, 3, 64, 64), "labels": words(step, 10, 4)})


def whisper() -> Case:
    config = tf.WhisperConfig(
        vocab_size=WORDS, d_model=192, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=512, decoder_ffn_dim=512, num_mel_bins=40, max_source_positions=100, max_target_positions=64, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = tf.WhisperForConditionalGeneration(config)
    return Case(model, lambda step: {"input_features": pictures(step, 4, 40, 200), "labels": words(step, WORDS, 4, 32), "use_cache": False})


def clip() -> Case:
    text = {**WIDTH, "num_hidden_layers": 3, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    vision = {name: size for name, size in WIDTH.items() if name != "vocab_size"} | {"num_hidden_layers": 3}
    config = tf.CLIPConfig(text_config=text, vision_config={**vision, "image_size": 64, "patch_size": 8}, projection_dim=128)

    def batch(step: int) -> Batch:
        tokens = words(step, WORDS, 8, 32)
        tokens[:, 20 + step :] = 2
        return {"input_ids": tokens, "pixel_values": pictures(step, 8, 3, 64, 64), "return_loss": True}

    return Case(tf.CLIPModel(config), batch)


def mamba() -> Case:
    config = tf.MambaConfig(vocab_size=WORDS, hidden_size=128, state_size=8, num_hidden_layers=2, pad_token_id=0, use_cache=False)
    return causal(tf.MambaForCausalLM(config), tokens=32)


def detr() -> Case:
    backbone = tf.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = tf.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, num_queries=20, d_model=96, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=192, decoder_ffn_dim=192, dropout=0.0,
        num_labels=10,
    )  # fmt: skip

    def batch(step: int) -> Batch:
        boxes = 0.2 + 0.3 * torch.rand((2, 3, 4), generator=torch.Generator().manual_seed(step))
        labels = [{"class_labels": words(step + place, 10, 3), "boxes": boxes[place]} for place in range(2)]
        return {"pixel_values": pictures(step, 2, 3, 128, 128), "pixel_mask": torch.ones(2, 128, 128, dtype=torch.long), "labels": labels}

    return Case(tf.DetrForObjectDetection(config), batch)


def segformer() -> Case:
    config = tf.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 96], decoder_hidden_size=96, num_labels=10, drop_path_rate=0.0,
        classifier_dropout_prob=0.0, **NO_DROPOUT,
    )  # fmt: skip

    def batch(step: int) -> Batch:
        return {"pixel_values": pictures(step, 4, 3, 64, 64), "labels": words(step, 10, 4, 64, 64)}

    return Case(tf.SegformerForSemanticSegmentation(config), batch)


def gemma() -> Case:
    config = tf.Gemma3TextConfig(**WIDTH, num_key_value_heads=2, head_dim=32, sliding_window=32, pad_token_id=0)
    return causal(tf.Gemma3ForCausalLM(config))


FAMILIES = (
    Entry("bert", "transformers", "masked words, padded sentences", bert),
    Entry("gpt2", "transformers", "next word", gpt2),
    Entry("llama", "transformers", "next word, grouped queries", llama),
    Entry("mixtral", "transformers", "next word, 2 of 4 experts, balancing loss", mixtral),
    Entry("t5", "transformers", "words from words", t5),
    Entry("vit", "transformers", "classes of images", vit),
    Entry("whisper", "transformers", "words from spectra", whisper),
    Entry("clip", "transformers", "images beside sentences, contrastive", clip),
    Entry("mamba", "transformers", "next word, selective scan", mamba),
    Entry("detr", "transformers", "boxes; matched to labels by scipy on the host", detr),
    Entry("segformer", "transformers", "classes of pixels", segformer),
    Entry("gemma", "transformers", "next word, Gemma 3, sliding window", gemma),
)
