"""Run PyTorch's own device-generic tests on device xla: first on the CPU, then those that pass there.

FILES: of the folder of tests (`test_view_ops.py`, `nn/test_pooling.py`); all that docs/conformance.md lists if none is given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import page
import pool
from outcomes import Record, counts_of

FILES = (
    "test_torch.py", "test_indexing.py", "test_view_ops.py", "test_shape_ops.py", "test_sort_and_select.py", "test_scatter_gather_ops.py",
    "test_reductions.py", "test_binary_ufuncs.py", "test_unary_ufuncs.py", "test_type_promotion.py", "test_tensor_creation_ops.py",
    "test_masked.py", "test_segment_reductions.py", "test_foreach.py", "test_linalg.py", "test_spectral_ops.py", "test_complex.py",
    "test_dlpack.py", "test_serialization.py", "test_nn.py", "nn/test_convolution.py", "nn/test_dropout.py", "nn/test_embedding.py",
    "nn/test_multihead_attention.py", "nn/test_parametrization.py", "nn/test_pooling.py", "test_modules.py", "test_optim.py",
    "test_autograd.py", "test_ops.py", "test_ops_gradients.py", "test_ops_fwd_gradients.py", "functorch/test_vmap.py",
    "functorch/test_eager_transforms.py", "functorch/test_ops.py", "distributed/test_distributed_spawn.py",
    "distributed/test_device_mesh.py", "distributed/_tensor/test_api.py", "distributed/_tensor/test_convolution_ops.py",
    "distributed/_tensor/test_dtensor.py", "distributed/_tensor/test_embedding_ops.py", "distributed/_tensor/test_experimental_ops.py",
    "distributed/_tensor/test_init.py", "distributed/_tensor/test_math_ops.py", "distributed/_tensor/test_matrix_ops.py",
    "distributed/_tensor/test_optimizers.py", "distributed/_tensor/test_random_ops.py", "distributed/_tensor/test_redistribute.py",
    "distributed/_tensor/test_tensor_ops.py", "distributed/_tensor/test_view_ops.py", "distributed/tensor/parallel/test_parallelize_api.py",
    "distributed/tensor/parallel/test_tp_examples.py", "distributed/tensor/parallel/test_tp_random_state.py",
    "distributed/tensor/parallel/test_tp_style.py",
)  # fmt: skip


def spread(names: Sequence[str], most: int | None) -> list[str]:
    """At most so many of the names, evenly spread."""
    if most is None or len(names) <= most:
        return list(names)
    return [names[math.floor(index * len(names) / most)] for index in range(most)]


@dataclass(frozen=True, slots=True)
class Part:
    """Every `of`-th test of a file from the `number`-th on, of files that take too long at once: it has a record and a row of its own."""

    number: int
    of: int

    def names(self, names: Sequence[str]) -> Sequence[str]:
        """Those of the names that are in this part."""
        return names[self.number - 1 :: self.of]

    def title(self, file: str) -> str:
        """What the part of a file is called."""
        return file if self.of == 1 else f"{file} {self.number}/{self.of}"


def part_of(context: click.Context, parameter: click.Parameter, value: str) -> Part:
    """The part that `2/8` names, the second of eight. Raises BadParameter for what names none."""
    number, _, of = value.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise click.BadParameter(f"{value!r} names no part; 2/8 is the second of eight")
    return Part(int(number), int(of))


def measure(tests: Path, file: str, part: Part, sample: int | None, workers: int, limit_s: float, record: Record) -> None:
    """Run what is not in the record yet."""
    for device in ("cpu", "xla"):
        try:
            first = pool.Worker(tests, file, device)
        except pool.LoadError as error:
            record.note_facts(error=f"on {device}: {error}")
            return
        if device == "cpu":
            in_part = part.names(first.tests)
            names = spread(in_part, sample)
            record.note_facts(tests=len(in_part), supplied=first.supplied)
        else:
            there = set(first.tests)
            names = [name for name in names if record.answers["cpu"][name]["outcome"] == "passed"]
            for name in names:
                if name not in there and name not in record.answers[device]:
                    record.note(device, name, {"outcome": "skipped", "text": "not made for other devices", "seconds": 0})
        missing = [name for name in names if name not in record.answers[device]]

        def note(name: str, answer: pool.Answer, device: str = device) -> None:
            record.note(device, name, answer)

        pool.run(first, tests, file, device, missing, workers, limit_s, note)


@click.command(help=__doc__)
@click.argument("files", nargs=-1)
@click.option(
    "--tests", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True, help="The folder `test` of PyTorch's source."
)
@click.option("--part", default="1/1", show_default=True, callback=part_of, help="2/8: the second of eight parts of each file.")
@click.option("--sample", type=click.IntRange(1), help="So many tests of a file, or of its part, evenly spread.")
@click.option("--record", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("conformance-record"), show_default=True,
              help="Where answers are kept, and from where a run goes on.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option("--limit", type=click.FloatRange(1.0), default=120.0, show_default=True, help="Seconds that a test may take.")
@click.option(
    "--into",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write conformance.md and .json in this folder; rows of other files stay.",
)
def main(
    files: tuple[str, ...], tests: Path, part: Part, sample: int | None, folder: Path, workers: int, limit: float, into: Path | None
) -> None:
    tests = tests.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for file in files or FILES:
        if not (tests / file).is_file():
            raise click.BadParameter(f"{tests} has no {file}")
        title = part.title(file)
        record = Record(folder / f"{title.replace('.py', '').replace(' ', '-').replace('/', '-')}.jsonl")
        measure(tests, file, part, sample, workers, limit, record)
        rows.append(counts_of(title, record))
        click.echo(page.line(rows[-1]))
    if into is not None:
        page.write(into, rows)


if __name__ == "__main__":
    main()
