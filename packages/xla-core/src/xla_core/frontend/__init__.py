"""The torch side: the tensor, the device, and one plan for each aten overload."""
