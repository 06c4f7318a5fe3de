"""Recording torch code apart from the pending graph, to run it later."""
