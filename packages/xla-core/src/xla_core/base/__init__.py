"""What everything else stands on: settings, dtypes, errors, files, metrics and the private names of torch and JAX."""
