"""Backend openxla of torch.compile: FX graphs captured as programs, and xla tensors that dynamo traces as plain tensors."""
