"""`torch_xla._XLAC`: upstream names that client code calls, over our runtime. One file for each subject."""
