"""Predictions for any number of examples, in order, and the file that they can be written to.

`_predictor` is the public class, `_run` compiles a predict function and calls it batch by batch, `_outputs`
writes predictions as JSON Lines and identifies the parameters that made them. Add another file format for
predictions beside `_outputs`.
"""
