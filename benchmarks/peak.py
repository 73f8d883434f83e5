"""Peak memory of inference: run as a separate process, prints `{number of tasks: bytes}`.

Memory in use before the model is built does not count.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.inference import predict
from benchmarks.models import SUBJECTS, Masked, random_pixels, subject, untrained
from clom import machine
from clom.methods.clom import Clom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SUBJECTS)
    parser.add_argument("kind", choices=["cut", "masked"])
    parser.add_argument("images", type=int)
    parser.add_argument("tasks", help="ascending numbers of tasks, for example 1,5,10")
    parser.add_argument("threads", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    machine.tune_process(options.threads)
    print(json.dumps(peaks(options)))


def peaks(options: argparse.Namespace) -> dict[str, int]:
    before = _status("VmRSS")
    if before is None:
        return {}
    what = subject(options.name, options.quick)
    tasks = [int(n) for n in options.tasks.split(",")]
    model = untrained(what, max(tasks), Masked if options.kind == "masked" else Clom)
    pixels = random_pixels(what, options.images)
    found = {}
    for n in tasks:
        predict(model, pixels, n)
        found[str(n)] = (_status("VmHWM") or before) - before
    return found


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None if it is unavailable.

    Not `getrusage`: on Linux its maximum is inherited from the process that started this one.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))
    except (OSError, StopIteration):
        return None


if __name__ == "__main__":
    main()
