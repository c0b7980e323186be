"""The command line as `python -m meshwright`."""

import sys

from meshwright.cli._internal import main

sys.exit(main())
