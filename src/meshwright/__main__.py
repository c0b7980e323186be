"""`python -m meshwright` is `meshwright`."""

import sys

from meshwright.cli import main

sys.exit(main())
