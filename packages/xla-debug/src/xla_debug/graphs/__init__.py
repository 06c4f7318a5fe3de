"""Save the graphs of programs as text, read them back and draw them."""
