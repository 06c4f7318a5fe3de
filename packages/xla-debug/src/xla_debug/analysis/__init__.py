"""Write the explanations that PT_XLA_DEBUG asks for: of compilations, executions, and slow steps."""
