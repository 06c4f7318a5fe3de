"""What is built on the engine: captured steps, control flow, torch.compile, export and more."""
