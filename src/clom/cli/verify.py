"""`clom verify`: check that nothing was forgotten.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.console import Console
from clom.cli.learn import say
from clom.cli.options import ModelFile

EXIT_CHANGED = 3


def verify_command(
    model: ModelFile,
    *,
    against: ModelFile | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> None:
    """Verify that a model's outputs for earlier tasks are bit-identical; exit code 3 if not.

    Parameters
    ----------
    model
        The model file.
    against
        An older copy of the model: the parameters, the scores and the answers of each of its tasks, as with predict
        --task, are compared. By default each task is compared with the fingerprint recorded when it was learned.
    threads
        Number of CPU threads; by default one per core.
    """
    from clom import machine
    from clom.photos.verify import verify

    machine.tune_process(threads)
    console = Console()
    checks = verify(model, against)
    for check in checks:
        fingerprint = f" [{check.fingerprint[:8]}]" if check.fingerprint else ""
        say(console, f"'{check.task}': {check.verdict}{fingerprint}, {check.reason}")
    bad = sum(not check.good for check in checks)
    if bad:
        say(console, f"{bad} of {len(checks)} tasks could not be verified.")
        sys.exit(EXIT_CHANGED)
    same = sum(check.verdict == "identical" for check in checks)
    say(
        console,
        f"Nothing was forgotten: the outputs of {same} {'task' if same == 1 else 'tasks'} are bit-identical.",
    )
