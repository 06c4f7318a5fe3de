"""Products by groups of rows."""
