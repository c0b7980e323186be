"""Write `sky.schema.json.xz`, SkyPilot's schemas of tasks: python make_sky_schema.py TASK.yaml

SkyPilot has many dependencies, so it gets its own environment: `pip install skypilot==0.14.1`. TASK.yaml
is what `meshwright launch sky --print` shows; SkyPilot's own code reads it before the schemas are written.
"""

import json
import lzma
import sys
from pathlib import Path

import sky
import yaml
from sky.utils import schemas

WRITTEN = Path(__file__).with_name("sky.schema.json.xz")


def main(task):
    read = sky.Task.from_yaml_config(yaml.safe_load(Path(task).read_text()))
    print(f"SkyPilot {sky.__version__} reads {read.name}: {read.num_nodes} nodes, {read.resources}")
    found = {"task": schemas.get_task_schema(), "resources": schemas.get_resources_schema()}
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    WRITTEN.write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(sys.argv[1])
