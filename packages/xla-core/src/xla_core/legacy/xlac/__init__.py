"""`torch_xla._XLAC`: the upstream names that client code calls, over our own runtime; a file for each subject."""
