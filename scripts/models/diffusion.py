"""Four pipelines of diffusers: their denoisers train, and the pipelines draw from the CPU's random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers as df
import torch
from torch import Tensor, nn
from torch.nn import functional

from case import Batch, Case, Entry, pictures, words

SCHEDULE = {"num_inference_steps": 3, "output_type": "np"}
TEXT = 48


class Denoiser(nn.Module):
    """A network that predicts noise, with its loss."""

    def __init__(self, network: nn.Module, channels: int) -> None:
        super().__init__()
        self.network, self.channels = network, channels

    def forward(self, noise: Tensor, **named: Any) -> dict[str, Tensor]:
        found = self.network(**named).sample
        found = found[:, : self.channels] if found.dim() == 4 else found
        return {"loss": functional.mse_loss(found, noise), "found": found}


def loss_of(output: Any) -> Tensor:
    loss: Tensor = output["loss"]
    return loss


def drawn(make: Callable[[nn.Module], Any], **named: Any) -> Callable[[nn.Module], Tensor]:
    """What draws two images with the pipeline that `make` gives, on the device of the network."""

    def draw(model: nn.Module) -> Tensor:
        network = model.network
        device = next(model.parameters()).device.type
        torch.manual_seed(1)
        pipeline = make(network).to(device)
        pipeline.set_progress_bar_config(disable=True)
        placed = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in named.items()}
        return torch.from_numpy(pipeline(generator=torch.Generator("cpu").manual_seed(5), **placed, **SCHEDULE).images)

    return draw


def autoencoder(channels: int) -> df.AutoencoderKL:
    """A small one, with a latent image of a quarter."""
    return df.AutoencoderKL(
        block_out_channels=(16, 32, 32), norm_num_groups=8, latent_channels=channels, down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, shift_factor=0.1,
    ).eval()  # fmt: skip


def ddim() -> Case:
    unet = df.UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def batch(step: int) -> Batch:
        noise = pictures(step, 4, 3, 32, 32)
        return {"noise": noise, "sample": noise + pictures(step + 50, 4, 3, 32, 32), "timestep": words(step, 1000, 4)}

    pipeline = drawn(lambda network: df.DDIMPipeline(network, df.DDIMScheduler()), batch_size=2, eta=1.0)
    return Case(Denoiser(unet, 3), batch, loss_of, pipeline)


def stable_diffusion() -> Case:
    unet = df.UNet2DConditionModel(
        sample_size=16, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=TEXT, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip

    def batch(step: int) -> Batch:
        noise = pictures(step, 4, 4, 16, 16)
        return {
            "noise": noise, "sample": noise + pictures(step + 50, 4, 4, 16, 16), "timestep": words(step, 1000, 4),
            "encoder_hidden_states": pictures(step, 4, 20, TEXT),
        }  # fmt: skip

    def pipeline(network: nn.Module) -> Any:
        return df.StableDiffusionPipeline(
            vae=autoencoder(4), text_encoder=None, tokenizer=None, unet=network, scheduler=df.EulerDiscreteScheduler(), safety_checker=None,
            feature_extractor=None, requires_safety_checker=False,
        )  # fmt: skip

    texts = {"prompt_embeds": pictures(7, 2, 20, TEXT), "negative_prompt_embeds": pictures(8, 2, 20, TEXT)}
    return Case(Denoiser(unet, 4), batch, loss_of, drawn(pipeline, **texts))


def dit() -> Case:
    network = df.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=24, in_channels=4, out_channels=8, num_layers=3, sample_size=16, patch_size=2,
        norm_num_groups=4, dropout=0.0, num_embeds_ada_norm=1000,
    )  # fmt: skip
    for block in network.transformer_blocks:  # in training, classes are dropped by each device's own random numbers
        block.norm1.emb.class_embedder.dropout_prob = 0.0

    def batch(step: int) -> Batch:
        noise = pictures(step, 4, 4, 16, 16)
        return {
            "noise": noise, "hidden_states": noise + pictures(step + 50, 4, 4, 16, 16), "timestep": words(step, 1000, 4),
            "class_labels": words(step, 1000, 4),
        }  # fmt: skip

    pipeline = drawn(lambda network: df.DiTPipeline(network, autoencoder(4), df.DDIMScheduler()), class_labels=[3, 7])
    return Case(Denoiser(network, 4), batch, loss_of, pipeline)


def flux() -> Case:
    network = df.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=32, num_attention_heads=3,
        joint_attention_dim=TEXT, pooled_projection_dim=32, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip

    def batch(step: int) -> Batch:
        noise = pictures(step, 4, 64, 16)
        places = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1).reshape(64, 3)
        return {
            "noise": noise, "hidden_states": noise + pictures(step + 50, 4, 64, 16), "timestep": pictures(step, 4).sigmoid(),
            "encoder_hidden_states": pictures(step, 4, 20, TEXT), "pooled_projections": pictures(step, 4, 32), "img_ids": places,
            "txt_ids": torch.zeros(20, 3),
        }  # fmt: skip

    def pipeline(network: nn.Module) -> Any:
        return df.FluxPipeline(df.FlowMatchEulerDiscreteScheduler(), autoencoder(4), None, None, None, None, network)

    texts = {"prompt_embeds": pictures(7, 2, 20, TEXT), "pooled_prompt_embeds": pictures(8, 2, 32), "height": 64, "width": 64}
    return Case(Denoiser(network, 16), batch, loss_of, drawn(pipeline, **texts))


PIPELINES = (
    Entry("ddim", "diffusers", "images; its UNet trains", ddim),
    Entry("stable_diffusion", "diffusers", "images from texts, Euler, autoencoder; its UNet trains", stable_diffusion),
    Entry("dit", "diffusers", "images of classes, autoencoder; its transformer trains", dit),
    Entry("flux", "diffusers", "images from texts, flow matching, autoencoder; its transformer trains", flux),
)
