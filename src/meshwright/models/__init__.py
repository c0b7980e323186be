"""Reference models, a file of plain functions each, and maps to the names that others give to parameters."""

from meshwright.models import decoder, gpt2, hugging_face, t5
from meshwright.models._map import Map, Reshape, Row, Transpose

__all__ = ["Map", "Reshape", "Row", "Transpose", "decoder", "gpt2", "hugging_face", "t5"]
