"""The explanations that PT_XLA_DEBUG asks for: compilations, executions, what slows steps down."""
