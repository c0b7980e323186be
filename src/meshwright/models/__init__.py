"""Reference models, a file of plain functions each, and maps to the names that others give to parameters."""

from meshwright.models import decoder, hugging_face
from meshwright.models._map import Map, Reshape, Row, Transpose

__all__ = ["Map", "Reshape", "Row", "Transpose", "decoder", "hugging_face"]
