"""A run described whole, as one frozen value, and run from Python or from a shell."""
