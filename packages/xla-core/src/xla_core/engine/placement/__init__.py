"""Where data is: on one device, on each replica, or sharded over a mesh."""
