"""Define methods in one line each, with the parameters of the function that evaluates the operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeVar

from xla_core.legacy.builder.table import OPERATORS

T = TypeVar("T")


class OperatorMethod:
    """Assigned in a class of operations, it becomes a method that makes an operation of `self` and the arguments.

    operands: parameters that are operations or numbers; attributes: the others. returns: the annotation that `help` shows.
    reflected: the only operand comes first, as in `1 - x`.
    """

    def __init__(
        self,
        operator: str,
        doc: str | None = None,
        operands: Sequence[Parameter] = (),
        attributes: Sequence[Parameter] = (),
        returns: str = "Self",
        reflected: bool = False,
    ) -> None:
        self._operator, self._doc, self._reflected = operator, doc, reflected
        self._operands = [operand.name for operand in operands]
        parameters = (Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *operands, *attributes)
        self._signature = inspect.Signature(parameters, return_annotation=returns)

    def __set_name__(self, owner: type, name: str) -> None:
        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            bound.apply_defaults()
            attributes = bound.arguments
            operation = attributes.pop("self")
            operands = [attributes.pop(operand_name) for operand_name in self._operands]
            if self._reflected:
                operation, operands = operation._operand(self._operator, *operands), [operation]
            return operation._make(self._operator, *operands, **attributes)

        method.__name__, method.__qualname__, method.__doc__ = name, f"{owner.__qualname__}.{name}", self._doc
        method.__module__ = owner.__module__
        method.__signature__ = self._signature  # type: ignore[attr-defined]
        setattr(owner, name, method)

    if TYPE_CHECKING:

        def __get__(self, operation: T | None, owner: type[T]) -> Callable[..., T]: ...


def elementwise(operator: str, doc: str | None = None, operand: str | None = None, reflected: bool = False) -> OperatorMethod:
    """The method of an operator over `self` alone, or over `self` and one operand of this name."""
    operands = [] if operand is None else [Parameter(operand, Parameter.POSITIONAL_OR_KEYWORD, annotation="Any")]
    return OperatorMethod(operator, doc, operands, reflected=reflected)


def method(operator: str, doc: str, required: str = "", optional: str = "", returns: str = "Op") -> OperatorMethod:
    """The method of an operator with the operands and attributes of the function in the table.

    required, optional: the names of its attributes in their order, where not all are taken. One that is required has no default.
    """
    _, *parameters = inspect.signature(OPERATORS[operator]).parameters.values()
    operands = [_annotated(parameter) for parameter in parameters if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    attributes = {parameter.name: _annotated(parameter) for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY}
    chosen = [_without_default(attributes[name]) for name in required.split()] + [attributes[name] for name in optional.split()]
    return OperatorMethod(operator, doc, operands, chosen or list(attributes.values()), returns)


def _annotated(parameter: Parameter) -> Parameter:
    annotation = "Op" if parameter.annotation == "Array" else parameter.annotation
    return parameter.replace(kind=Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _without_default(parameter: Parameter) -> Parameter:
    return parameter.replace(default=Parameter.empty, annotation=parameter.annotation.removesuffix(" | None"))
