"""Programs run on a terminal, and what then stands on its screen."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def on_terminal(command, *, columns, cwd, env):
    """Run a command whose output is a terminal; return its exit code and the lines that stand at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**env, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        env.pop(name, None)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # Linux says so when nobody has the other end any more
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    return process.wait(), screen(written.decode())


def screen(written):
    """Return the lines of a screen of any height and width, on which this was written."""
    lines, row, column = [""], 0, 0
    for codes, letter, back, down, text in _PIECE.findall(written):
        number = int(codes) if codes.isdecimal() else 1
        if letter == "A":
            row = max(0, row - number)
        elif letter == "K":
            lines[row] = ""
        elif back:
            column = 0
        elif down:
            row += 1
            lines += [""] * (row == len(lines))
        elif text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]
