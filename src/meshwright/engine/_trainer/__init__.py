"""`Trainer`: examples, a loss and an optimizer in; a trained model out."""
