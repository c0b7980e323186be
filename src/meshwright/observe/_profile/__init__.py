"""Profiles of some steps, and summaries of their times.

`_trace` takes a profile while a run goes on, `_xplane` reads the events and the compiled programs in it,
`_scopes` groups operations by layer, and `_summary` adds the times up, those of collectives by mesh axes, and
prints them. A new figure is a field of `Summary`.
"""
