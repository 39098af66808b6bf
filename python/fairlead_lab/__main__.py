"""``python -m fairlead_lab`` is the command ``fairlead-lab``."""

import sys

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
