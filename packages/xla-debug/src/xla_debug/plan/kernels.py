"""What a Pallas kernel for TPUs has to compute, and how long that takes: the compiler tells neither."""

from __future__ import annotations

from dataclasses import dataclass

from xla_debug.plan.hardware import KERNEL_SHARE, KERNEL_STEP_CYCLES, SPECIAL_RESULTS, VECTOR_LANES, VECTOR_RESULTS, Speed


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one shape. times: how many; rows × inner times inner × columns; bits: of an element of the left one."""

    times: float
    rows: int
    inner: int
    columns: int
    bits: int

    @property
    def flops(self) -> float:
        """Operations of all of them."""
        return 2.0 * self.times * self.rows * self.inner * self.columns

    def padded(self, unit: int) -> float:
        """Operations of matrix units of unit × unit cells, with the idle cells of those that it does not fill, for operands in 16 bits.

        Operands in 32 bits go through a unit at half the speed.
        """
        inner, columns = (-(-size // unit) * unit for size in (self.inner, self.columns))
        return 2.0 * self.times * self.rows * inner * columns * max(1.0, self.bits / 16)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel computes in one call. vector: results of vector operations, special: of exponentials and the like, in 32 bits each.

    steps: of its grid. exact: False where not all of its control flow is known; then all is counted that may run.
    """

    products: tuple[Product, ...] = ()
    vector: float = 0.0
    special: float = 0.0
    steps: int = 1
    exact: bool = True

    @property
    def flops(self) -> float:
        """Operations of its products."""
        return sum(product.flops for product in self.products)


def kernel_seconds(work: KernelWork, speed: Speed) -> float:
    """How long a kernel takes on a TPU: as the unit that has most to do, matrix or vector, and some cycles for each step of the grid."""
    lanes = VECTOR_LANES * speed.cores * speed.clock
    units = (
        sum(product.padded(speed.unit) for product in work.products) / speed.flops_bf16,
        work.vector / (lanes * VECTOR_RESULTS),
        work.special / (lanes * SPECIAL_RESULTS),
    )
    return max(units) / KERNEL_SHARE + work.steps * KERNEL_STEP_CYCLES / speed.clock
