"""`torch_xla.experimental.background_compile`: new programs run at once, and compile while they do."""

from __future__ import annotations

from xla_core.engine.compile.tiers import compile_first, evaluate_first, wait_for_background


class BackgroundCompile:
    """Compiling in the background, which ends by `stop`, or at the end of a `with` block."""

    def __init__(self) -> None:
        evaluate_first(self)

    def wait(self) -> None:
        """Wait until all is compiled that was used at least twice."""
        wait_for_background()

    def stop(self) -> None:
        """Let programs that are new from now on compile before they run. Does nothing the second time."""
        compile_first(self)

    def __enter__(self) -> BackgroundCompile:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def background_compile() -> BackgroundCompile:
    """From now on no step waits until its program is compiled, in all threads: a new program is evaluated operation by operation, and is
    compiled in the background once it is used a second time; from then on it runs compiled.

    On the CPU torch's own kernels evaluate it, over the memory of the device; elsewhere, and for random numbers, executables of single
    operations do, which are compiled when an operation comes with new shapes, and kept, at most 4,096 of them. Results agree as those of
    two compilers do. Programs over several devices, captured and exported steps compile before they run, as always.
    """
    return BackgroundCompile()
