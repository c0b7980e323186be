"""The board of a run: a small file for each process that says where it stands, and what follows from them.

`_entry` is the file, written every second by a thread of the process. `_look` reads all files twice and says
what each process does: of one that is stopped or holds Python's lock, and so writes nothing, Linux tells more
in `/proc`, on its own machine. `_verdict` makes a table of it, and the sentence that follows. `_slow` finds
processes that are slower than the others. Nothing here talks to other processes, and no time of another
machine's clock is used.
"""
