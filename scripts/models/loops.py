"""Training loops of transformers, accelerate and Lightning, and decoding by transformers: on xla as on the CPU."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import lightning
import torch
import transformers as tf
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import torch_xla
import torch_xla.core.xla_model as xm
from case import Entry, Ran, pictures, words
from image_models import Classifier
from lightning_trainer import XLADevices
from measuring import SETTLED, compiled_programs
from transformers_families import WORDS, gpt2, llama

STEPS = 13
BATCH = 4
NEW = 32
PROMPT = 16


class Samples(Dataset[dict[str, Tensor]]):
    """As many samples as a number of steps takes."""

    def __init__(self, samples: list[dict[str, Tensor]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return self.samples[place]


class Clock:
    """Notes time and programs at the ends of step 3 and of the last one."""

    def __init__(self, last: int = STEPS) -> None:
        self.steps, self.last = 0, last
        self.noted: list[tuple[float, int]] = []

    def step(self) -> None:
        """To be called at the end of each step."""
        self.steps += 1
        if self.steps in (SETTLED, self.last):
            xm.wait_device_ops()
            self.noted.append((time.perf_counter(), compiled_programs()))

    def ran(self, results: Any, model: nn.Module | None = None) -> Ran:
        """All of the run, which has ended."""
        (start, before), (end, after) = self.noted
        weights = {} if model is None else {name: value.detach().cpu() for name, value in model.state_dict().items()}
        return Ran(results, weights, 1e3 * (end - start) / (self.last - SETTLED), after - before)


def sentences() -> Samples:
    rows = words(0, WORDS, STEPS * BATCH, 64)
    return Samples([{"input_ids": row, "labels": row} for row in rows])


def photos() -> Samples:
    images, labels = pictures(0, STEPS * BATCH, 3, 32, 32), words(0, 10, STEPS * BATCH)
    return Samples([{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)])


class _Stepped(tf.TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.step()


def transformers_trainer(device: str) -> Ran:
    clock, model = Clock(), gpt2().model
    with tempfile.TemporaryDirectory() as folder:
        arguments = tf.TrainingArguments(
            output_dir=folder, max_steps=STEPS, report_to=[], save_strategy="no", logging_steps=STEPS, disable_tqdm=True,
            per_device_train_batch_size=BATCH, learning_rate=1e-4, warmup_steps=3,
        )  # fmt: skip
        trainer = tf.Trainer(model=model, args=arguments, train_dataset=sentences(), callbacks=[_Stepped(clock)])
        _check_device(trainer.args.device, device)
        trainer.train()
    logged = [entry[name] for entry in trainer.state.log_history for name in ("loss", "grad_norm") if name in entry]
    return clock.ran(torch.tensor(logged), model)


def accelerate_run(device: str) -> Ran:
    clock, model = Clock(), gpt2().model
    accelerator = Accelerator(cpu=device == "cpu")
    _check_device(accelerator.device, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
    loader = DataLoader(sentences(), batch_size=BATCH)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    losses = []
    for batch in loader:
        loss = model(**batch, use_cache=False).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        clock.step()
    return clock.ran(torch.stack(losses).cpu(), model)


class _Module(lightning.LightningModule):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.model, self.clock, self.losses = Classifier(_convolutions()), clock, []

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss: Tensor = self.model(**batch)["loss"]
        self.log("loss", loss)
        self.losses.append(loss.detach())
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.clock.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def _convolutions() -> nn.Module:
    # Without biases before batch norm: their gradients are noise around zero, of which AdamW makes whole steps.
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip


def lightning_run(device: str) -> Ran:
    clock = Clock()
    module = _Module(clock)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator=XLADevices() if device == "xla" else "cpu", devices=1, max_epochs=1, default_root_dir=folder, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, gradient_clip_val=1.0,
        )  # fmt: skip
        trainer.fit(module, DataLoader(photos(), batch_size=BATCH))
    return clock.ran(torch.stack(module.losses).cpu(), module)


def generate(device: str) -> Ran:
    model = llama().model.eval().to(device)
    if device == "xla":
        model.forward = torch_xla.compile(model.forward, capture=True)
    prompt = words(0, WORDS, 2, PROMPT).to(device)
    chosen = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "cache_implementation": "static"}
    model.generate(prompt, **chosen)
    programs, start = compiled_programs(), time.perf_counter()
    tokens = model.generate(prompt, **chosen).cpu()
    return Ran(tokens.double(), {}, 1e3 * (time.perf_counter() - start) / NEW, compiled_programs() - programs)


@torch.no_grad()
def decode(device: str) -> Ran:
    """Greedy decoding over a static cache, whose step for one token is captured on xla."""
    model = llama().model.eval().to(device)
    prompt = words(0, WORDS, 2, PROMPT).to(device)
    cache = tf.StaticCache(config=model.config, max_cache_len=PROMPT + 4 * NEW)

    def step(token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(token, past_key_values=cache, position_ids=position[None]).logits[:, -1:]
        return logits.argmax(-1), position + 1

    called = torch_xla.compile(step, capture=True) if device == "xla" else step
    token, _ = step(prompt, torch.arange(PROMPT, device=device))
    position = torch.full((1,), PROMPT, device=device)
    if device == "xla":
        torch_xla.sync()
    clock, tokens = Clock(NEW), [token]
    for _ in range(NEW):
        token, position = called(token, position)
        tokens.append(token)
        clock.step()
    return clock.ran(torch.cat(tokens, 1).cpu().double())


def _check_device(found: torch.device, wanted: str) -> None:
    if found.type != wanted:
        raise RuntimeError(f"the library chose the device {found}, not {wanted}")


LOOPS = (
    Entry("trainer", "transformers", "transformers.Trainer, GPT-2; losses and weights after 13 steps", run=transformers_trainer),
    Entry("accelerate", "accelerate", "Accelerator, GPT-2, clipped gradients; losses and weights after 13 steps", run=accelerate_run),
    Entry("lightning", "lightning", "Trainer, convolutions, clipped gradients; losses and weights after 13 steps", run=lightning_run),
    Entry(
        "generate",
        "transformers",
        "Llama, static cache, forward captured: tokens; ms per token of the second call, and what it compiles",
        run=generate,
        outputs=0.0,
    ),
    Entry("decode", "transformers", "Llama, static cache, steps captured: tokens; ms per token", run=decode, outputs=0.0),
)
