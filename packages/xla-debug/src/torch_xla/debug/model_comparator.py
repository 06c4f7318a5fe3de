"""Two runs of a model compared, tensor by tensor; also `python -m torch_xla.debug.model_comparator DIR1 DIR2`."""

from xla_debug.model_comparator import compare, compare_tensors, configure, main, save, tensor_file_compare

__all__ = ["compare", "compare_tensors", "configure", "save", "tensor_file_compare"]

if __name__ == "__main__":
    main()
