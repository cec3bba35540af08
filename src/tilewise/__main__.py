"""`python -m tilewise` is the command line."""

from tilewise.cli import console

if __name__ == "__main__":
    console()
