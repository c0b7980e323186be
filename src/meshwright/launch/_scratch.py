"""Temporary directories of launchers. `meshwright-launch-MACHINE-PID-BIRTH-…` says whose each is."""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from meshwright.processes._internal import birth_of, here


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary directory, after those of this user's launchers that were killed are removed.

    A process of another machine or container, which may share the temporary directory, cannot be seen from
    here, so those of others stay.
    """
    host, pid, birth, namespace = here()
    mine = f"meshwright-launch-{hashlib.sha256(f'{host} {namespace}'.encode()).hexdigest()[:8]}-"
    for path in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        owner = re.match(r"(\d+)-(\d+)-", path.name.removeprefix(mine))
        if owner and birth_of(int(owner[1])) != owner[2] and path.lstat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{mine}{pid}-{birth}-")
