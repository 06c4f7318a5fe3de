"""What operations do element by element: Python's operators, and functions of one and of two."""

from __future__ import annotations

from typing import Any, Self


class ElementwiseMethods:
    """Operators and functions of each element."""

    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class

    def _make(self, name: str, *others: Any, **kwargs: Any) -> Self:
        """The operation of this name with this one as first operand."""
        raise NotImplementedError

    def _operand(self, name: str, value: Any) -> Self:
        """An operand of that operation: itself, or a number as a constant of this one's type."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise TypeError("an operation has no value while a computation is built: use select, mkconditional or mkwhile in the place of `if`")

    def __add__(self, rhs: Any) -> Self:
        return self._make("Add", rhs)

    def __sub__(self, rhs: Any) -> Self:
        return self._make("Sub", rhs)

    def __mul__(self, rhs: Any) -> Self:
        return self._make("Mul", rhs)

    def __matmul__(self, rhs: Any) -> Self:
        return self._make("Dot", rhs)

    def __truediv__(self, rhs: Any) -> Self:
        return self._make("Div", rhs)

    def __pow__(self, rhs: Any) -> Self:
        return self._make("Pow", rhs)

    def __mod__(self, rhs: Any) -> Self:
        return self._make("Rem", rhs)

    def __and__(self, rhs: Any) -> Self:
        return self._make("And", rhs)

    def __or__(self, rhs: Any) -> Self:
        return self._make("Or", rhs)

    def __xor__(self, rhs: Any) -> Self:
        return self._make("Xor", rhs)

    def __eq__(self, rhs: Any) -> Self:  # type: ignore[override]  # an operation, not a bool
        return self._make("Eq", rhs)

    def __ne__(self, rhs: Any) -> Self:  # type: ignore[override]  # an operation, not a bool
        return self._make("Ne", rhs)

    def __le__(self, rhs: Any) -> Self:
        return self._make("Le", rhs)

    def __lt__(self, rhs: Any) -> Self:
        return self._make("Lt", rhs)

    def __ge__(self, rhs: Any) -> Self:
        return self._make("Ge", rhs)

    def __gt__(self, rhs: Any) -> Self:
        return self._make("Gt", rhs)

    def __lshift__(self, rhs: Any) -> Self:
        return self._make("ShiftLeft", rhs)

    def __rshift__(self, rhs: Any) -> Self:
        return self._make("ShiftRight", rhs)

    def __radd__(self, lhs: Any) -> Self:
        return self._operand("Add", lhs)._make("Add", self)

    def __rsub__(self, lhs: Any) -> Self:
        return self._operand("Sub", lhs)._make("Sub", self)

    def __rmul__(self, lhs: Any) -> Self:
        return self._operand("Mul", lhs)._make("Mul", self)

    def __rtruediv__(self, lhs: Any) -> Self:
        return self._operand("Div", lhs)._make("Div", self)

    def __rpow__(self, lhs: Any) -> Self:
        return self._operand("Pow", lhs)._make("Pow", self)

    def __rmod__(self, lhs: Any) -> Self:
        return self._operand("Rem", lhs)._make("Rem", self)

    def __rand__(self, lhs: Any) -> Self:
        return self._operand("And", lhs)._make("And", self)

    def __ror__(self, lhs: Any) -> Self:
        return self._operand("Or", lhs)._make("Or", self)

    def __rxor__(self, lhs: Any) -> Self:
        return self._operand("Xor", lhs)._make("Xor", self)

    def __rlshift__(self, lhs: Any) -> Self:
        return self._operand("ShiftLeft", lhs)._make("ShiftLeft", self)

    def __rrshift__(self, lhs: Any) -> Self:
        return self._operand("ShiftRight", lhs)._make("ShiftRight", self)

    __hash__ = object.__hash__  # taken away by `__eq__`, which compares elements

    def __neg__(self) -> Self:
        return self._make("Neg")

    def __not__(self) -> Self:
        return self._make("Not")

    def __invert__(self) -> Self:
        return self._make("Not")

    def __abs__(self) -> Self:
        return self._make("Abs")

    def abs(self) -> Self:
        """The absolute value."""
        return self._make("Abs")

    def acos(self) -> Self:
        """The arc cosine."""
        return self._make("Acos")

    def asin(self) -> Self:
        """The arc sine."""
        return self._make("Asin")

    def atan(self) -> Self:
        """The arc tangent."""
        return self._make("Atan")

    def ceil(self) -> Self:
        """The next whole number above."""
        return self._make("Ceil")

    def cos(self) -> Self:
        """The cosine."""
        return self._make("Cos")

    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return self._make("Cosh")

    def erf(self) -> Self:
        """The error function."""
        return self._make("Erf")

    def erfc(self) -> Self:
        """One minus the error function."""
        return self._make("Erfc")

    def erfinf(self) -> Self:
        """The inverse of the error function."""
        return self._make("ErfInv")

    def exp(self) -> Self:
        """e to the power."""
        return self._make("Exp")

    def expm1(self) -> Self:
        """e to the power, minus one."""
        return self._make("Expm1")

    def floor(self) -> Self:
        """The next whole number below."""
        return self._make("Floor")

    def log(self) -> Self:
        """The natural logarithm."""
        return self._make("Log")

    def log1p(self) -> Self:
        """The natural logarithm of one more."""
        return self._make("Log1p")

    def sqrt(self) -> Self:
        """The square root."""
        return self._make("Sqrt")

    def real(self) -> Self:
        """The real part."""
        return self._make("Real")

    def imag(self) -> Self:
        """The imaginary part."""
        return self._make("Imag")

    def clz(self) -> Self:
        """How many leading bits are zero."""
        return self._make("Clz")

    def conj(self) -> Self:
        """The complex conjugate."""
        return self._make("Conj")

    def rsqrt(self) -> Self:
        """One divided by the square root."""
        return self._make("Rsqrt")

    def sin(self) -> Self:
        """The sine."""
        return self._make("Sin")

    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return self._make("Sinh")

    def tan(self) -> Self:
        """The tangent."""
        return self._make("Tan")

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._make("Tanh")

    def atan2(self, other: Any) -> Self:
        """The angle of the point (other, self)."""
        return self._make("Atan2", other)

    def max(self, other: Any) -> Self:
        """The larger one."""
        return self._make("Max", other)

    def min(self, other: Any) -> Self:
        """The smaller one."""
        return self._make("Min", other)
