"""`python -m clom` is the `clom` command."""

from clom.cli import main

if __name__ == "__main__":
    main()
