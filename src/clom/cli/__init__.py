"""The command line: one small file per command, each imported when it is called, so that help is instant."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import MutableSequence, Sequence

from cyclopts import App, CycloptsError

from clom import __version__
from clom.errors import UserError
from clom.launch import read_launch

COMMANDS = {
    "learn": "Teach a model the classes of a folder of photos; a new model is made if there is none.",
    "predict": "Say what is on photos, or that they are like nothing the model knows.",
    "inspect": "Show what a model knows: tasks, classes, dates, photos seen, capacity.",
    "verify": "Prove that a model answers as it did, to the last bit.",
    "forget": "Remove a task from a model; the others do not change by a bit.",
    "serve": "Open a page in the browser to ask a model and to teach it, and an API for other programs.",
    "example-photos": "Draw folders of example photos to try the commands above with.",
    "demo": "Learn embedded digits, task by task, in about two minutes.",
    "run": "Learn an experiment's tasks one after another and measure after each.",
    "resume": "Go on with an interrupted run.",
    "grid": "Do all runs that a file lists; finished ones are skipped.",
    "record": "Add finished runs to the ledger.",
    "scores": "Compare OOD scores on a finished run: which tells its tasks and other images apart best.",
    "report": "Write finished runs as one HTML page.",
    "table": "Show one of the paper's tables, filled from the ledger.",
    "figure": "Draw the paper's figures from the ledger, or pictures of finished runs.",
    "results": "Write the page of results from the ledger.",
    "list": "Show experiments, methods, networks, data sets, OOD scores, task predictors and budgets.",
    "new": "Write a commented starting file for a method, an experiment, a score or a network of your own.",
    "doctor": "Show what this machine can do and how long each experiment would take.",
    "export": "Write a model as one ONNX or torch.export file for other programs.",
    "import-authors": "Turn a checkpoint of the paper's authors into a model file.",
}
HELP = """Teach an image classifier new classes without forgetting.

Every command takes --plugin FILE.py or --plugin MODULE, as often as needed: code that brings methods, networks, data
sets or scores of your own. What installed packages bring is known without it.
"""
IN_SEVERAL_PROCESSES = ("run", "resume")
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def make_app() -> App:
    app = App(name="clom", help=HELP, version=__version__)
    for name, purpose in COMMANDS.items():
        module = name.replace("-", "_")
        app.command(f"clom.cli.{module}:{module}_command", name=name, help=purpose)
    return app


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"clom: warning: {message}", file=sys.stderr)


def take_plugins(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The arguments without `--plugin`, which may stand anywhere, and what it names."""
    words = iter(arguments)
    rest: MutableSequence[str] = []  # `list` is a command here
    plugins: MutableSequence[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if word == "--":
            return [*rest, word, *words], plugins
        if option != "--plugin":
            rest.append(word)
            continue
        plugin = value if equals else next(words, "")
        if not plugin or plugin.startswith("-"):
            raise UserError("--plugin takes a Python file or a module, for example --plugin my_method.py.")
        plugins.append(plugin)
    return rest, plugins


def _load(plugins: Sequence[str]) -> None:
    if plugins:
        from clom.plugins import load_plugin

        for plugin in plugins:
            load_plugin(plugin)


def _check_launch(arguments: Sequence[str]) -> None:
    """Under torchrun every process gets the same command: most would do the same work several times."""
    command = next(iter(arguments), "")
    if read_launch().size > 1 and command in COMMANDS and command not in IN_SEVERAL_PROCESSES:
        raise UserError(f"'clom {command}' is for one process: start it without torchrun, which is for 'clom run'.")


def _speaker() -> str:
    """Of several processes the first speaks for all; the others say who they are."""
    rank = os.environ.get("RANK") or "0"
    return "clom" if rank == "0" else f"clom, process {rank}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. A user's mistake ends with one message and exit code 2, never with a traceback."""
    warnings.showwarning = _show_warning
    try:
        words, plugins = take_plugins(sys.argv[1:] if arguments is None else arguments)
        _check_launch(words)
        _load(plugins)
        make_app()(words, exit_on_error=False, print_error=False)
    except (UserError, CycloptsError) as problem:
        print(f"{_speaker()}: {problem}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            sys.stderr.close()  # the reader of our output has left; there is nobody to tell
            sys.exit(0)
        where = f": {problem.filename}" if problem.filename else ""
        print(f"{_speaker()}: {problem.strerror or problem}{where}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and "allocate memory" not in str(problem):
            raise
        print("clom: the memory of this machine does not suffice. A smaller network or batch helps.", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        print("\nclom: stopped.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
