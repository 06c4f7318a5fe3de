"""A small server over a Llama of transformers: warm up without running, seal, then answer prompts of every length.

Prints the time to the first token and between tokens beside eager torch. `--continuous` runs transformers' own continuous batching
instead, whose batches have shapes of their own, and waits for no compiler all the same.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator

import click
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.generation import ContinuousBatchingConfig

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental import background_compile
from torch_xla.shapes import Buckets, choose_buckets


def llama() -> LlamaForCausalLM:
    """A small Llama with random weights, the same ones each time."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=512)  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Server:
    """Answers one prompt after another, greedily, over one cache of a fixed length.

    buckets: the sizes to which prompts are padded, so that each size is one program; None: each as it is.
    """

    def __init__(self, device: str, longest: int, buckets: Buckets | None) -> None:
        self.device, self.buckets = device, buckets
        self.model = llama().to(device)
        self.cache = StaticCache(config=self.model.config, max_cache_len=longest)
        self.next: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self._next
        if device == "xla":
            self.next = torch_xla.compile(self._next, capture=True)

    @torch.no_grad()
    def answer(self, prompt: list[int], new: int) -> Iterator[int]:
        """The tokens of an answer, one by one."""
        length = len(prompt)
        padding = 0 if self.buckets is None else self.buckets.of(length) - length
        tokens = torch.tensor([prompt + [0] * padding]).to(self.device)
        count = torch.tensor([length]).to(self.device)
        token = self._first(tokens, count)
        position = count
        yield int(token.item())
        for _ in range(new - 1):
            token, position = self.next(token, position)
            yield int(token.item())

    def _first(self, tokens: Tensor, count: Tensor) -> Tensor:
        """The first token behind a padded prompt. What the padding leaves in the cache is behind all positions that are looked at."""
        for layer in self.cache.layers:
            layer.cumulative_length.zero_()
        positions = torch.arange(tokens.shape[1], device=self.device)
        logits = self.model(tokens, past_key_values=self.cache, position_ids=positions[None]).logits
        token = logits.index_select(1, count - 1).argmax(-1)
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(count[0])
        if self.device == "xla":
            torch_xla.sync()
        return token

    def _next(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(token, past_key_values=self.cache, position_ids=position[None]).logits[:, -1:]
        return logits.argmax(-1), position + 1


def compiled() -> int:
    """How many programs were compiled so far."""
    return int(metrics.counter_value("UncachedCompile") or 0)


def serve(server: Server, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Answer all prompts, and print how long tokens took."""
    first, between, answers = [], [], []
    for prompt in prompts:
        answers.append([])
        start = time.perf_counter()
        for token in server.answer(prompt, new):
            now = time.perf_counter()
            (between if answers[-1] else first).append(1e3 * (now - start))
            answers[-1].append(token)
            start = now
    for name, times in (("first token", first), ("between tokens", between)):
        steps = statistics.quantiles(times, n=100, method="inclusive")
        print(f"{server.device:4} {name:15} p50 {steps[49]:6.2f} ms, p99 {steps[98]:6.2f} ms")
    return answers


def sealed(prompts: list[list[int]], new: int) -> list[list[int]]:
    """Serve from sizes chosen for these lengths, which are compiled before the first request."""
    buckets = choose_buckets(map(len, prompts), 6)
    server = Server("xla", buckets.sizes[-1] + new, buckets)
    for _ in server.answer([1], 3):  # makes the cache
        pass
    start, before = time.perf_counter(), compiled()
    with torch_xla.compile_only() as warm:
        for size in buckets.sizes:
            for _ in server.answer([1] * size, 3):
                pass
    print(
        f"warm-up: {warm.programs} programs in {time.perf_counter() - start:.1f} s, prompts padded to {', '.join(map(str, buckets.sizes))}"
    )
    for _ in server.answer([1], 4):  # captures the step of one token
        pass
    gc.collect()
    gc.freeze()  # Python's garbage collector would look through all of torch and JAX now and then
    before = compiled()
    with torch_xla.seal():
        answers = serve(server, prompts, new)
    print(f"compiled since the seal: {compiled() - before}")
    return answers


def continuous(prompts: list[list[int]], new: int) -> tuple[list[list[int]], list[list[int]]]:
    """The answers of transformers' continuous batching by eager torch, and on xla with programs that compile in the background."""
    chosen = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=511, pad_token_id=0)
    batching = ContinuousBatchingConfig(page_size=16, num_blocks=128, max_batch_tokens=128)
    answers = []
    for device in ("cpu", "xla"):
        model, before, start = llama().to(device), compiled(), time.perf_counter()
        with background_compile():
            batch = model.generate_batch(prompts, generation_config=chosen, continuous_batching_config=batching)
        answers.append([output.generated_tokens for _, output in sorted(batch.items(), key=lambda item: int(item[0].split("_")[-1]))])
        count = sum(map(len, answers[-1]))
        print(f"{device:4} {count} tokens in {time.perf_counter() - start:.1f} s, waited for {compiled() - before} compiles")
    return answers[0], answers[1]


@click.command(help=__doc__)
@click.option("--requests", type=click.IntRange(4), default=100, show_default=True)
@click.option("--longest", type=click.IntRange(4, 400), default=200, show_default=True, help="Tokens of the longest prompt.")
@click.option("--new", type=click.IntRange(2, 64), default=16, show_default=True, help="Tokens of an answer.")
@click.option("--continuous", "batched", is_flag=True, help="Use transformers' continuous batching.")
def main(requests: int, longest: int, new: int, batched: bool) -> None:
    torch.manual_seed(1)
    lengths = (torch.randperm(requests) * longest // requests + 1).tolist()
    prompts = [torch.randint(1, 511, (length,)).tolist() for length in lengths]
    if batched:
        expected, answers = continuous(prompts, new)
    else:
        expected, answers = serve(Server("cpu", longest + new, None), prompts, new), sealed(prompts, new)
    same = sum(one == other for one, other in zip(expected, answers, strict=True))
    print(f"answers equal to eager torch's: {same} of {requests}")


if __name__ == "__main__":
    main()
