"""Formats of others, each as a `Source`."""

from meshwright.checkpoint._readers._safetensors import SafetensorsSource

__all__ = ["SafetensorsSource"]
