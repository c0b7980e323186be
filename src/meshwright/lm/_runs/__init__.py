"""Runs of language models: how their models generate, and what is made of their checkpoints.

`_generation` is the value that an experiment, a trainer and a predictor take; `_texts` has the texts of a
checkpoint, `_served` its model for a server, and `_export` its files for other programs.
"""
