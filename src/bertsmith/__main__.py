"""`python -m bertsmith` is `bertsmith`."""

import sys

from bertsmith.cli import main

sys.exit(main())
