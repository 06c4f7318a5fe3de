"""Every exception that xla_core raises on purpose. Each subclasses the builtin that users of torch already catch.

XlaError (Exception)
├── UnsupportedDtypeError (TypeError)      a dtype without a counterpart in XLA
├── DeviceMismatchError (RuntimeError)     operands on different devices, or on the CPU
├── UnknownDeviceError (RuntimeError)      a device text or kind that does not exist
├── DeviceIndexError (IndexError)          an index past the devices of this process
├── LoweringError (RuntimeError)           a lowering or the compiler failed; names operation, shapes, user line
├── ExecutionError (RuntimeError)          a compiled program, or the client under it, failed
├── DonatedError (RuntimeError)            the buffer was donated: a program has written its results there
├── FallbackError (RuntimeError)           an operation without lowering where fallback is forbidden
├── UnsupportedOperationError (NotImplementedError)  cannot be done on XLA; says what to do instead
├── GraphBreakError (RuntimeError)         a value was read where only one graph is allowed
├── CaptureError (RuntimeError)             a step that cannot be captured, or is no longer what was captured; says why, and what to do
├── StepFileError (ValueError)             a file of an exported step that is damaged, another program's, or of a newer version
├── ExportFolderError (ValueError)         a folder of an exported program that is damaged, no export, or of a newer version
├── TooManyGraphsError (RuntimeError)      more distinct graphs than the user's limit
├── PartFirstError (RuntimeError)          a program that must not run at once: the part up to one of its operations has to run first
├── SealedError (RuntimeError)             what `torch_xla.seal()` forbids, such as a new program; names line and difference
├── RegistrationError (ValueError)         an operation, pass or plugin registered wrongly or twice
├── GraphEditError (ValueError)            an edit of a graph that would not be a legal program
├── PluginError (RuntimeError)             a plugin's graph pass raised, or made no legal program
├── AbiVersionError (ImportError)          a plugin's wheel and this core do not fit
├── InstallationError (ImportError)        files of `torch_xla` are another project's, or missing; names the command that mends it
├── MissingPackageError (ModuleNotFoundError)  a name whose package is not installed
└── InternalError (RuntimeError)           an invariant of ours is broken; please report
"""

from __future__ import annotations

from collections.abc import Callable


class XlaError(Exception):
    """Base of all errors raised by xla_core.

    place: the recorded operation that failed: the `Graph` of its program, and its slot there.
    """

    place: tuple[object, int] | None = None


class UnsupportedDtypeError(XlaError, TypeError):
    """A dtype without a counterpart in XLA."""


class DeviceMismatchError(XlaError, RuntimeError):
    """Operands live on different devices."""


class UnknownDeviceError(XlaError, RuntimeError):
    """A device text or hardware kind that does not exist."""


class DeviceIndexError(XlaError, IndexError):
    """A device index past the devices that this process addresses."""


class LoweringError(XlaError, RuntimeError):
    """A lowering or the compiler failed on a recorded operation."""


class ExecutionError(XlaError, RuntimeError):
    """A compiled program, or the client that runs it, failed."""


class DonatedError(XlaError, RuntimeError):
    """The buffer of a value was marked for donation, and a program has taken it over."""


class FallbackError(XlaError, RuntimeError):
    """An operation without lowering was recorded where CPU fallback is forbidden."""


class UnsupportedOperationError(XlaError, NotImplementedError):
    """Something that cannot be done on XLA tensors; the message says what to do instead."""


class GraphBreakError(XlaError, RuntimeError):
    """A value was read inside a region that must be one graph."""


class CaptureError(XlaError, RuntimeError):
    """A function that `torch_xla.compile(capture=True)` cannot capture, or that no longer does what was captured."""


class CapturedStepChanged(CaptureError):
    """A captured function does something else than its program, which was launched since that was last seen: results may be wrong."""


class StepFileError(XlaError, ValueError):
    """A file that is not an exported step, is damaged, or is of a newer version."""


class ExportFolderError(XlaError, ValueError):
    """A folder of an exported program is damaged, is not an export, or is of a newer version; names file, value and remedy."""


class TooManyGraphsError(XlaError, RuntimeError):
    """A region compiled more distinct graphs than its limit allows."""


class PartFirstError(XlaError, RuntimeError):
    """A program must not run at once: what one of its operations needs has to run first, with it.

    slot: of that operation in the program's graph; None where nobody can run a part.
    """

    slot: int | None = None


class SealedError(XlaError, RuntimeError):
    """A program that was not compiled before `torch_xla.seal()`, or a read or an upload that it forbids."""


class RegistrationError(XlaError, ValueError):
    """An operation, pass or plugin was registered wrongly or twice."""


class GraphEditError(XlaError, ValueError):
    """An edit of a graph that would not be a legal program."""


class PluginError(XlaError, RuntimeError):
    """A graph pass that a plugin registered raised, or made no legal program."""


def described(function: Callable[..., object]) -> str:
    """A function's module and name, for messages."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or '?'}.{name}"


class AbiVersionError(XlaError, ImportError):
    """A plugin's wheel needs another version of the core's ABI."""


class InstallationError(XlaError, ImportError):
    """`torch_xla` is another project's, a mixture of two, or incomplete."""


class MissingPackageError(XlaError, ModuleNotFoundError):
    """A name of the API whose implementing package is not installed."""


class InternalError(XlaError, RuntimeError):
    """An invariant of xla_core itself does not hold."""


def internal(condition: bool, message: Callable[[], str]) -> None:
    """Raise InternalError with `message()` unless `condition` holds; the text is only built on failure."""
    if not condition:
        raise InternalError(f"{message()} (this is a defect of xla-core; please report it with the code that led here)")
