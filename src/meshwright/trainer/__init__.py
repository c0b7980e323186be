"""`Trainer`: examples, a loss and an optimizer in; a trained model out."""

from meshwright.trainer._trainer import Trainer

__all__ = ["Trainer"]
