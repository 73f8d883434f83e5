"""`python -m clom.cli.supervised` is the `clom` command as a part of another program: it stops when that one ends,
however that ends.

The other program holds its standard input open. When it is closed, the command gets SIGTERM, and so saves its progress.

Tested by tests/experiments/test_grid.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from clom.cli import main


def _stop_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # unbuffered: the lock of sys.stdin would block the exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_input, daemon=True).start()
    main()
