"""diffusers' pipelines on xla: the same images as on the CPU for a generator of the CPU, reproducible ones for generators of xla."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.utils.torch_utils import randn_tensor


def network() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def cpu() -> DDIMPipeline:
    pipeline = DDIMPipeline(network(), DDIMScheduler(num_train_timesteps=20))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def xla(cpu: DDIMPipeline) -> DDIMPipeline:
    pipeline = DDIMPipeline(copy.deepcopy(cpu.unet), cpu.scheduler).to("xla")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def seeded(device: str, *seeds: int) -> list[torch.Generator]:
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def images(pipeline: DDIMPipeline, generator: object, eta: float = 1.0) -> np.ndarray:
    found = pipeline(batch_size=2, generator=generator, num_inference_steps=3, eta=eta, output_type="np")
    return found.images  # type: ignore[no-any-return]


def test_a_cpu_generator_gives_the_images_of_the_cpu(cpu: DDIMPipeline, xla: DDIMPipeline) -> None:
    assert xla.device.type == "xla"
    np.testing.assert_allclose(images(xla, seeded("cpu", 5)[0]), images(cpu, seeded("cpu", 5)[0]), atol=1e-4)


def test_a_list_of_cpu_generators_gives_the_images_of_the_cpu(cpu: DDIMPipeline, xla: DDIMPipeline) -> None:
    np.testing.assert_allclose(images(xla, seeded("cpu", 5, 6)), images(cpu, seeded("cpu", 5, 6)), atol=1e-4)


def test_an_xla_generator_gives_the_same_images_again(xla: DDIMPipeline) -> None:
    first, again, other = (images(xla, seeded("xla", seed)[0]) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_each_of_a_list_of_xla_generators_draws_its_own_image(xla: DDIMPipeline) -> None:
    both, turned = images(xla, seeded("xla", 5, 6)), images(xla, seeded("xla", 6, 5))
    np.testing.assert_allclose(both, turned[::-1], atol=1e-5)


def test_ddpm_gives_the_images_of_the_cpu(cpu: DDIMPipeline, xla: DDIMPipeline) -> None:
    found = []
    for unet in (cpu.unet, xla.unet):
        pipeline = DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=20))
        pipeline.set_progress_bar_config(disable=True)
        found.append(pipeline(batch_size=1, generator=seeded("cpu", 1)[0], num_inference_steps=3, output_type="np").images)
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


@pytest.mark.parametrize("generators", [1, 2], ids=["one", "a list"])
def test_noise_of_cpu_generators_is_that_of_the_cpu(generators: int) -> None:
    seeds = range(generators)
    expected = randn_tensor((2, 3), generator=seeded("cpu", *seeds), device=torch.device("cpu"))
    found = randn_tensor((2, 3), generator=seeded("cpu", *seeds), device=torch.device("xla"))
    assert found.device.type == "xla"
    assert torch.equal(found.cpu(), expected)


def test_an_xla_generator_says_its_device() -> None:
    assert seeded("xla", 0)[0].device.type == "xla"
    assert randn_tensor((2, 3), generator=seeded("xla", 0)[0], device=torch.device("xla")).device.type == "xla"
