"""The op table: how each aten operation is written in jax.lax, one family a file."""
