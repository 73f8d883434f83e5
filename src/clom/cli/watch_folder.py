"""`clom learn --watch`: learn from a folder that fills up.

Tested by tests/cli/test_photo_changes.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clom.errors import UserError
    from clom.photos.changes.add import Added
    from clom.photos.teach import Lesson, Listener
    from clom.photos.watch import FolderWatch

SECONDS_BETWEEN_LOOKS = 2.0


def keep_watching(
    watch: FolderWatch,
    say: Callable[[str], None],
    listener: Callable[[], Listener],
    show: Callable[[Lesson | Added | UserError], None],
) -> None:
    """Look at the folder until the program is interrupted, and show what was learned."""
    said = ""
    while True:
        for found in watch.look(time.monotonic(), listener):
            show(found)
        if watch.waiting != said:
            said = watch.waiting
            if said:
                say(said)
        time.sleep(SECONDS_BETWEEN_LOOKS)
