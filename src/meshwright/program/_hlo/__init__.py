"""Compiled programs, read from their HLO text: FLOPs, memory traffic and collectives.

`_program` parses the text, `_executions` finds the instructions that run and how often, and the other files
count one thing each: kernels, collectives. `_files` writes a program and its graph to files. To support a new
HLO operation, change the file that counts it.
"""
