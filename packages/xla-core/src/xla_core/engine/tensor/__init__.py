"""The torch side: the tensor, the device, and one handler for each aten overload."""
