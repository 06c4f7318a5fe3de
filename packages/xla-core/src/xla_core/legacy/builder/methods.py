"""The methods of `Op` that make one operation each, by the names of 2.9's builder: operators of Python first."""

from __future__ import annotations

from functools import partial

from xla_core.legacy.builder.method import elementwise, method

_operator = partial(elementwise, operand="rhs")
_reflected = partial(elementwise, operand="lhs", reflected=True)
_windowed = partial(method, returns="Self")
_DIMENSIONS = (
    "input_batch_dimension input_feature_dimension kernel_input_feature_dimension kernel_output_feature_dimension "
    "output_batch_dimension output_feature_dimension input_spatial_dimensions kernel_spatial_dimensions output_spatial_dimensions"
)
_GROUPS = "feature_group_count batch_group_count"


class Methods:
    """One operation made of this one and of others.

    Padding is "valid", "same" or a pair of numbers for each spatial dimension (each dimension, where there is no kernel).
    precision_config: "default", "high" or "highest", or one for each operand.
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class
    __hash__ = object.__hash__  # taken away by `__eq__`, which compares elements

    def __bool__(self) -> bool:
        raise TypeError("an operation has no value while a computation is built: use select, mkconditional or mkwhile in the place of `if`")

    __add__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = _operator("Mul")
    __matmul__ = _operator("Dot")
    __truediv__ = _operator("Div")
    __pow__ = _operator("Pow")
    __mod__ = _operator("Rem")
    __and__ = _operator("And")
    __or__ = _operator("Or")
    __xor__ = _operator("Xor")
    __eq__ = _operator("Eq")  # type: ignore[assignment]  # an operation, not a bool
    __ne__ = _operator("Ne")  # type: ignore[assignment]  # an operation, not a bool
    __le__ = _operator("Le")
    __lt__ = _operator("Lt")
    __ge__ = _operator("Ge")
    __gt__ = _operator("Gt")
    __lshift__ = _operator("ShiftLeft")
    __rshift__ = _operator("ShiftRight")
    __radd__ = _reflected("Add")
    __rsub__ = _reflected("Sub")
    __rmul__ = _reflected("Mul")
    __rtruediv__ = _reflected("Div")
    __rpow__ = _reflected("Pow")
    __rmod__ = _reflected("Rem")
    __rand__ = _reflected("And")
    __ror__ = _reflected("Or")
    __rxor__ = _reflected("Xor")
    __rlshift__ = _reflected("ShiftLeft")
    __rrshift__ = _reflected("ShiftRight")
    __neg__ = elementwise("Neg")
    __not__ = elementwise("Not")
    __invert__ = elementwise("Not")
    __abs__ = elementwise("Abs")

    abs = elementwise("Abs", "The absolute value.")
    acos = elementwise("Acos", "The arc cosine.")
    asin = elementwise("Asin", "The arc sine.")
    atan = elementwise("Atan", "The arc tangent.")
    atan2 = elementwise("Atan2", "The angle of the point (other, self).", "other")
    ceil = elementwise("Ceil", "The next whole number above.")
    clz = elementwise("Clz", "How many leading bits are zero.")
    conj = elementwise("Conj", "The complex conjugate.")
    cos = elementwise("Cos", "The cosine.")
    cosh = elementwise("Cosh", "The hyperbolic cosine.")
    erf = elementwise("Erf", "The error function.")
    erfc = elementwise("Erfc", "One minus the error function.")
    erfinf = elementwise("ErfInv", "The inverse of the error function.")
    exp = elementwise("Exp", "e to the power.")
    expm1 = elementwise("Expm1", "e to the power, minus one.")
    floor = elementwise("Floor", "The next whole number below.")
    imag = elementwise("Imag", "The imaginary part.")
    log = elementwise("Log", "The natural logarithm.")
    log1p = elementwise("Log1p", "The natural logarithm of one more.")
    max = elementwise("Max", "The larger one.", "other")
    min = elementwise("Min", "The smaller one.", "other")
    real = elementwise("Real", "The real part.")
    rsqrt = elementwise("Rsqrt", "One divided by the square root.")
    sin = elementwise("Sin", "The sine.")
    sinh = elementwise("Sinh", "The hyperbolic sine.")
    sqrt = elementwise("Sqrt", "The square root.")
    tan = elementwise("Tan", "The tangent.")
    tanh = elementwise("Tanh", "The hyperbolic tangent.")

    bitcast = method("BitcastConvert", "The bits as another type.")
    broadcast = method("Broadcast", "Repeated along new dimensions of these sizes, in front.")
    broadcast_in_dim = method("BroadcastInDim", "Repeated to `sizes`; dimensions: which of those the own ones are.")
    cast = method("Convert", "The values as another type.")
    clamp = method("Clamp", "Not less than one value, nor more than the other.")
    dynamic_reshape = method("DynamicReshape", "`reshape`: shapes are fixed here.")
    gather = method("Gather", "XLA's Gather. slice_sizes: 1 for collapsed dimensions and the whole of others, if left out.")
    get_tuple_element = method("GetTupleElement", "One element of a tuple.")
    pad = method("Pad", "Padded with a number. config: elements before, after and between, for each dimension.")
    reduce = method("Reduce", "Reduced along dimensions by a computation of two numbers.")
    reduce_all = method("ReduceAll", "Reduced to one number.")
    reshape = method("Reshape", "The elements in another shape. dimensions: in which order the old ones are read.")
    rev = method("Rev", "With the elements along dimensions in reverse order.")
    scatter = method("Scatter", "XLA's Scatter; `computation` combines what was there with an update.")
    slice = method("Slice", "The elements from start to limit, in each dimension.")
    slice_in_dim = method("SliceInDim", "The elements from start to limit in one dimension.")
    transpose = method("Transpose", "With the dimensions in another order.")
    triangualr_solve = method("TriangularSolve", "The x of `self x = b` (or `x self = b`) for a triangular matrix, upper unless `lower`.")
    while_loop = method("While", "This state after `body`, again and again while `condition` holds of it.")

    conv = _windowed(
        "Conv",
        "The convolution of (N, C, *spatial) with a kernel of (O, I, *spatial).",
        "window_strides",
        f"{_GROUPS} padding precision_config",
    )
    conv_with_general_padding = _windowed(
        "Conv", "`conv` with a pair of paddings for each spatial dimension.", "window_strides padding", f"{_GROUPS} precision_config"
    )
    conv_with_general_dimensions = _windowed(
        "Conv", "`conv` with dimensions in any order.", f"window_strides {_DIMENSIONS}", f"padding {_GROUPS} precision_config"
    )
    conv_general = _windowed(
        "Conv",
        "`conv` with dimensions in any order, and pairs of paddings.",
        f"window_strides padding {_DIMENSIONS}",
        f"{_GROUPS} precision_config",
    )
    conv_general_dilated = _windowed(
        "Conv",
        "`conv_general` with steps between the elements of the input and of the kernel.",
        f"window_strides padding lhs_dilation rhs_dilation {_DIMENSIONS}",
        f"{_GROUPS} precision_config",
    )
    max_pool = _windowed("MaxPool", "The largest element of each window. kernel_size, stride: of all dimensions, or of the spatial ones.")
    reduce_window = _windowed("ReduceWindow", "Each window reduced by a computation of two numbers.")
    select_and_scatter = _windowed(
        "SelectAndScatter", "`init_value`, and each element of `source` added where its window is decided: what a max-pool's gradient is."
    )
    select_and_scatter_with_general_padding = _windowed(
        "SelectAndScatter",
        "`select_and_scatter` with a pair of paddings for each dimension.",
        "window_dimensions window_strides select_computation scatter_computation padding",
    )
