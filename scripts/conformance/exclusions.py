"""What tests may not find on device xla, with the reason and what to do instead. No test of it counts as passed."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A kind of refusal, or of tests that expect what no promise covers.

    words: that the error has: for a refusal, of this project's own sentence. tests: whose names have this; None for all.
    """

    kind: str
    words: re.Pattern[str]
    reason: str
    remedy: str
    tests: re.Pattern[str] | None = None


EXCLUSIONS = (
    # Not where the test of an operator's dtypes names others, too.
    Exclusion("complex32", re.compile(r"\A(?!.*OpInfo: \{(?!torch\.complex32\})).*complex32 has no counterpart on XLA", re.DOTALL),
              "XLA has no complex numbers of half precision", "compute in complex64"),
    Exclusion("complex32 as a result", re.compile("RuntimeError not raised"),
              "torch promotes complex numbers and float16 to complex32 where the one with dimensions is float16",
              "compute in float32 or complex64", re.compile(r"test_result_type_(complex\d+_float16|float16_complex\d+)$")),
    Exclusion("sparse", re.compile("there are no sparse tensors"),
              "xla tensors are dense", "keep them on the CPU, or `to_dense()` before the move"),
    Exclusion("quantized", re.compile(r"there are no quantized tensors|qu?int\d+ has no counterpart on XLA"),
              "XLA has no dtypes of quantized tensors",
              "integers and their scale in two tensors, as `torch.ops.quantized_decomposed` has them"),
    Exclusion("nested", re.compile("there are no nested tensors"),
              "xla tensors have one shape", "pad with `torch.nested.to_padded_tensor`, and keep the lengths or a mask"),
    Exclusion("capsules of DLPack", re.compile("Scalars are not equal|String comparison failed: 'xla' != 'cpu'"),
              "the CPU platform's memory is CPU memory, and DLPack says so: who takes a capsule has a CPU tensor",
              "`torch_xla.utils.dlpack.from_dlpack` makes an xla tensor of it", re.compile(r"(alias|copy)_from_dlpack_")),
    Exclusion("the choice among torch's own convolutions", re.compile("_ConvBackend.Overrideable"),
              "a device from outside has one convolution, which torch calls overrideable", "nothing: it is no result",
              re.compile("conv_backend")),
    Exclusion("floats beyond the range of an integer type", re.compile("Tensor-likes are not equal"),
              "C++ leaves the result undefined; XLA gives the nearest integer", "`clamp` first",
              re.compile("float_to_int_conversion_finite")),
    Exclusion("a Python function for each element", re.compile("map2?_ is only implemented on CPU tensors"),
              "`map_` and `map2_` are the CPU's, on no accelerator", "torch's operations, or `.cpu()` first"),
    Exclusion("names of the CPU's classes", re.compile("False is not true|does not match|None mismatch: None is not <class 'torch"),
              "the test expects the CPU's class of each device but CUDA", "nothing: it is no result",
              re.compile("test_(grad_scaler_deprecated_warning|grad_scaling_state_dict|tensor_storage_type_)")),
    Exclusion("`torch.tensor` of a storage", re.compile("Cannot copy out of meta tensor|TypedStoragePair"),
              "torch reads the storage's memory in C++, where there is none", "`storage.cpu()` first, or `torch.empty(0).set_(storage)`",
              re.compile("test_(deterministic_resize|deepcopy|tensor_from_storage)_")),
    Exclusion("copy-on-write of torch's own memory", re.compile("False is not true|RuntimeError not raised"),
              "values on the device never change: a clone shares its origin's until one of the two is written to, without torch's marks",
              "nothing: `_lazy_clone()` works", re.compile("test_(lazy_clone|parallel_cow_materialize_error|cow_input)_")),
    Exclusion("errors that depend on data", re.compile("(Runtime|Index)Error not raised"),
              "they are raised when the program has run: at the next read of a value, or the end of the step",
              "`torch_xla.sync()` where the error is wanted",
              re.compile("test_(masked_scatter_[a-z]*[0-9]*|advancedindex_float64|trivial_fancy_out_of_bounds|unsafe_flag_int(32|64)|"
                         "normal_std_error|embedding_bag_out_of_bounds_idx_.*|eig_with_nan_.*)$")),
    Exclusion("packed 4-bit weights", re.compile("_convert_weight_to_int4pack has neither an XLA lowering nor a CPU kernel"),
              "their layouts are those of CUDA's kernels",
              "`torch_xla.experimental.xla_quantized_matmul.quantized_matmul(int4_weight=True)`"),
    Exclusion("more than CUDA has", re.compile("RuntimeError not raised"),
              "the test expects of each device but the CPU that it has no such kernel", "nothing: the results are those of the CPU",
              re.compile("test_(upsamplingBiMode2d_nonsupported_dtypes_.*_uint8|addbmm_bfloat16)$")),
    Exclusion("the fast path of transformer layers", re.compile("False is not true"),
              "torch takes it on devices from outside, too; as on the CPU it gives NaN for what is masked whole, which the test expects of "
              "the CPU and CUDA only",
              "`torch.backends.mha.set_fastpath_enabled(False)`", re.compile("test_transformerencoderlayer_float")),
    Exclusion("kernels of the test itself", re.compile("could not find kernel for HigherOrderOperator mysum"),
              "the test registers its operator for the CPU and CUDA only", "register it for `AutogradPrivateUse1`, too"),
    Exclusion("a meta tensor beside another", re.compile("Input tensor is not an XLA tensor: torch.meta"),
              "the CPU takes some of these, and gives memory that nobody has written", "`module.to_empty(device=\"xla\")` first",
              re.compile("test_module_to_empty_float")),
    Exclusion("the identity of a gradient that leaves the device", re.compile("False is not true"),
              "a gradient on the device is a tensor of a class, which `Module.to` cannot make one of the CPU: it makes a new one",
              "read `parameter.grad` again after `module.to`", re.compile("test_to_nn_.*_swap_False_set_grad_True_")),
    Exclusion("inductor", re.compile("makes no programs for xla devices"),
              "torch.compile's default backend writes code for devices that it knows", "`torch.compile(backend=\"openxla\")`"),
    Exclusion("marks of PyTorch/XLA's device", re.compile("False is not true"),
              "the test fails on purpose on a device of this name", "nothing: it is no result",
              re.compile("test_(expected_failure|skip)_xla")),
    Exclusion("random numbers that the tolerance depends on", re.compile("Tensor-likes are not close"),
              "with other seeds the CPU fails, too: of 30 runs of weight norms 12 (15 here), of 300 of bags at least 17 in float16 and 22 "
              "in bfloat16 (as here); with the numbers that are drawn here bags fail on the CPU by the same amounts",
              "nothing: results differ as little from the CPU's as they may",
              re.compile("test_weight_norm_parametrization|test_EmbeddingBag_per_sample_weights_and_offsets_.*float16")),
    Exclusion("gloo's words", re.compile(r"monitoredBarrier.*does not match .*(did not arrive|was lost)", re.DOTALL),
              "errors of monitored barriers name, on each replica, all that did not arrive; gloo's have its own words",
              "nothing: they are `RuntimeError`, as torch's", re.compile("test_monitored_barrier_gloo")),
    Exclusion("clocks of DistributedDataParallel", re.compile("0 not greater than or equal to 1"),
              "torch's C++ has clocks for the stages of a step on the CPU and on CUDA only; operations here are recorded, and run together",
              "`xla-debug run SCRIPT`, or torch's profiler", re.compile("test_ddp_logging_data_cpu")),
    Exclusion("the class of what is not waited for", re.compile("XLATensor.*AsyncCollectiveTensor"),
              "all operations are asynchronous: results of collectives need no class that waits",
              "nothing: it is no result", re.compile("test_dtensor_async_output")),
    Exclusion("files of xla tensors where torch is imported alone", re.compile("don't know how to restore data location .*tagged with xla"),
              "the test loads one in a process that does not import torch_xla", "`import torch_xla`, or `map_location=\"cpu\"`",
              re.compile("test_dtensor_save_load_import")),
    Exclusion("CUDA by name", re.compile("Torch not compiled with CUDA enabled"),
              "the test makes its tensors on CUDA wherever its device is not the CPU", "nothing: it is no result",
              re.compile("test_init_ops")),
    Exclusion("gathers in the place of all-to-all", re.compile("Expected 1 but got 0"),
              "the test expects them of each device but CUDA; torch itself gathers where the backend is gloo", "nothing: it is no result",
              re.compile("test_redistribute_shard_dim_change")),
)  # fmt: skip


def exclusion_of(test: str, text: str) -> Exclusion | None:
    """The exclusion that the error of a test belongs to; None for any other."""
    for exclusion in EXCLUSIONS:
        if exclusion.words.search(text) and (exclusion.tests is None or exclusion.tests.search(test)):
            return exclusion
    return None
