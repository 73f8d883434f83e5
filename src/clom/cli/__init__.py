"""The command line: one module per command, imported only when that command runs, so that --help is fast."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import MutableSequence, Sequence
from io import TextIOWrapper

from cyclopts import App, CycloptsError

from clom import __version__
from clom.errors import UserError
from clom.launch import read_launch
from clom.untrusted_text import printable

COMMANDS = {
    "learn": "Teach a model the classes in a folder of photos, creating the model if it does not exist.",
    "predict": "Classify photos, or report them as unknown to the model.",
    "inspect": "Show a model's tasks, classes, training dates, photo counts and capacity.",
    "verify": "Verify that a model's outputs for earlier tasks are bit-identical.",
    "correct": "Tell a model the right class of photos, which are added to it.",
    "rename": "Give a class or a task another name.",
    "merge": "Take two classes of a model for one.",
    "undo": "Take back the last change of a model.",
    "forget": "Remove a task from a model; the other tasks stay bit-identical.",
    "serve": "Serve a model: a web page for predicting and teaching, and an HTTP API.",
    "example-photos": "Generate folders of example photos for trying the commands above.",
    "demo": "Learn the bundled digits task by task, in about two minutes.",
    "run": "Run an experiment: learn its tasks in sequence and evaluate after each.",
    "resume": "Resume an interrupted run.",
    "watch": "Show a running run in the terminal: curves, capacity and time left.",
    "grid": "Execute all runs listed in a file, skipping finished ones.",
    "tune": "Search for a method's recipe on held-out training images.",
    "recipes": "Write the built-in recipes from recorded searches.",
    "record": "Add finished runs to the ledger.",
    "scores": "Compare OOD scores on a finished run.",
    "report": "Write an HTML report of finished runs.",
    "compare": "Compare the results and settings of finished runs.",
    "table": "Show one of the paper's tables, filled from the ledger.",
    "figure": "Draw the paper's figures from the ledger, or figures of finished runs.",
    "results": "Write the results page from the ledger.",
    "list": "List experiments, methods, networks, data sets, OOD scores, task predictors and budgets.",
    "new": "Create a commented template for your own method, experiment, score or network.",
    "doctor": "Show this machine's hardware and the estimated duration of each experiment.",
    "export": "Export a model to a single ONNX or torch.export file.",
    "import-authors": "Convert a checkpoint of the paper's authors to a model file.",
}
HELP = """Teach an image classifier new classes without forgetting.

Every command accepts --plugin FILE.py or --plugin MODULE (repeatable) to load your own methods, networks, data sets or
scores. Plug-ins of installed packages are found automatically.
"""
IN_SEVERAL_PROCESSES = ("run", "resume")
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def make_app() -> App:
    app = App(name="clom", help=HELP, version=__version__)
    for name, purpose in COMMANDS.items():
        module = name.replace("-", "_")
        app.command(f"clom.cli.{module}:{module}_command", name=name, help=purpose)
    app.register_install_completion_command(help="Install completion of commands and options for your shell.")
    return app


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _complain("clom", f"warning: {message}")


def _complain(prefix: str, message: str) -> None:
    """Print a message that may quote names from outside."""
    print(printable(f"{prefix}: {message}"), file=sys.stderr)


def take_plugins(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split off the `--plugin` options, which may appear anywhere: the other arguments and the plug-ins."""
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
    """Reject commands that torchrun would only repeat in every process."""
    command = next(iter(arguments), "")
    if read_launch().size > 1 and command in COMMANDS and command not in IN_SEVERAL_PROCESSES:
        raise UserError(f"'clom {command}' is for one process: start it without torchrun.")


def _prefix() -> str:
    """Prefix of messages, with the rank for all processes but the first."""
    rank = os.environ.get("RANK") or "0"
    return "clom" if rank == "0" else f"clom, process {rank}"


def _print_what_the_terminal_has() -> None:
    """Characters that its encoding lacks, such as ± in ASCII, become question marks instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. A user's mistake ends with one message and exit code 2, never with a traceback."""
    warnings.showwarning = _show_warning
    _print_what_the_terminal_has()
    try:
        words, plugins = take_plugins(sys.argv[1:] if arguments is None else arguments)
        _check_launch(words)
        _load(plugins)
        make_app()(words, exit_on_error=False, print_error=False)
    except (UserError, CycloptsError) as problem:
        _complain(_prefix(), str(problem))
        sys.exit(EXIT_USAGE)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            sys.stderr.close()  # the reader of our output is gone, so no message can arrive
            sys.exit(0)
        where = f": {problem.filename}" if problem.filename else ""
        _complain(_prefix(), f"{problem.strerror or problem}{where}")
        sys.exit(EXIT_USAGE)
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and "allocate memory" not in str(problem):
            raise
        print("clom: out of memory. Use a smaller network or batch size.", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        print("\nclom: stopped.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
