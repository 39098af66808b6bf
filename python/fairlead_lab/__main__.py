"""``python -m fairlead_lab`` is the command ``fairlead-lab``."""

from .commands import entry

if __name__ == "__main__":
    entry()
