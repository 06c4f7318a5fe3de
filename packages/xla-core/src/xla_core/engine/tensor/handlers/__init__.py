"""Custom handlers: overloads that are more than one lowering, by subject."""
