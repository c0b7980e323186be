"""Profiles of some steps, and summaries of where their time went.

`_trace` takes a profile while a run goes on, `_xplane` reads its events and `_programs` the compiled programs
in it, `_scopes` groups operations by layer, `_measure` adds the times up, those of collectives by mesh axes,
and `_summary` holds and prints them. Add a figure to `Summary`, and compute it in `_measure`.
"""
