"""Stages of a pipeline: the layers of a loss are split over devices, and microbatches go through them in
turn.
"""
