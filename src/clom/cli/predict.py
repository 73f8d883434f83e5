"""`clom predict`: classify photos.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from clom.cli.checks import any_exists, is_model
from clom.cli.console import Console
from clom.cli.learn import say, show_confused, show_links, show_skipped
from clom.cli.options import Device, Links
from clom.errors import DataError, UserError
from clom.ood.rejection import FALSE_REJECTION

if TYPE_CHECKING:
    from clom.data.folders import Skipped
    from clom.photos.archives import PhotoFiles
    from clom.photos.predict import Answer, Predictor

_BATCH = 64
_THUMBNAIL = 96
Answered = list[tuple[Path, "Answer"]]


def predict_command(
    model: Path,
    /,
    *images: str,
    url: str | None = None,
    token: Annotated[str | None, Parameter(env_var="CLOM_TOKEN")] = None,
    task: str | None = None,
    top: Annotated[int, Parameter(validator=Number(gte=1))] = 3,
    false_rejection: Annotated[float, Parameter(validator=Number(gte=0, lt=1))] = FALSE_REJECTION,
    json: bool = False,
    csv: Path | None = None,
    mistakes: Path | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    device: Device = "auto",
    links: Links = True,
) -> None:
    """Classify photos, or report them as unknown to the model.

    Parameters
    ----------
    model
        The model file. Omit it with --url.
    images
        Photos, folders or zip files of photos, or glob patterns such as 'holiday/*.jpg'.
    url
        Use a running `clom serve` instead of a model file, for example http://127.0.0.1:8000
    token
        The server's token, if it needs one; better set as the environment variable CLOM_TOKEN.
    task
        Predict only among the classes of this task.
    top
        Number of most likely classes to show.
    false_rejection
        Accepted fraction of known photos rejected as unknown; a higher value rejects more unknown photos too.
    json
        Print the full result as JSON instead.
    csv
        Also write the predictions to this CSV file.
    mistakes
        For photos in folders named after a class: write the confusion matrix and the confused photos to this HTML file.
    threads
        Number of CPU threads; by default one per core.
    """
    if mistakes is not None and mistakes.is_dir():
        raise UserError(f"{mistakes} is a folder. Name a file for the mistakes.")
    if url is None:
        is_model(None, model)
    images = images if url is None else (str(model), *images)
    if not images:
        raise UserError("No photos given. Name them after the model: clom predict MODEL PHOTO ...")
    any_exists(images)
    from clom.data.finding import find_files, linked
    from clom.photos.archives import PhotoFiles

    found, skipped = find_files(images, links)
    console, notes = Console(), Console(stderr=True)
    if not found:  # noticed before a model is loaded
        show_skipped(notes, skipped)
        raise UserError(f"None of {len(skipped)} files could be read as an image.")
    source = _Model(model, threads, device) if url is None else _Server(url, token)
    answered: Answered = []
    with PhotoFiles(found if url is None else ()) as photos:
        files = photos.paths if url is None else found
        skipped += photos.skipped
        for batch in source.answers(photos, files, skipped, task, top, false_rejection):
            answered += batch
            if not json:
                _show_answers(console, batch, files)
        if json:
            print(_as_json(url or str(model), answered, skipped, false_rejection))
        show_skipped(notes, skipped)
        show_links(notes, len(linked(found, images)))
        if not answered:
            raise UserError(f"None of {len(skipped)} files could be read as an image.")
        if csv is not None:
            _write_csv(csv, answered, skipped, top)
        labelled = _labelled(source.answer_names, answered)
        if not json:
            _show_summary(console, answered, labelled)
        if mistakes is not None:
            _write_mistakes(notes, mistakes, labelled, photos)


class _Model:
    """Predictions of a model file."""

    def __init__(self, path: Path, threads: int | None, device: str) -> None:
        from clom import machine
        from clom.methods.families.base import move
        from clom.photos.predict import Predictor
        from clom.storage.model_file import load_model

        machine.tune_process(threads)
        method = load_model(path)
        move(method, machine.choose_device(device))
        self.predictor = Predictor(method)
        tasks = self.predictor.method.tasks
        self.answer_names = {
            name: said for task in tasks for name, said in zip(task.class_names, task.answer_names, strict=True)
        }

    def answers(
        self, photos: PhotoFiles, files: Sequence[Path], skipped: list[Skipped], *question: Any
    ) -> Iterator[Answered]:
        return _answers(self.predictor, photos, files, skipped, *question)


class _Server:
    """Predictions of a `clom serve` server."""

    def __init__(self, url: str, token: str | None) -> None:
        from clom.serve.client import Client

        self.client = Client(url, token)
        tasks = self.client.model()["tasks"]
        self.answer_names = {name: task.get("merged", {}).get(name, name) for task in tasks for name in task["classes"]}

    def answers(
        self, photos: PhotoFiles, files: Sequence[Path], skipped: list[Skipped], *question: Any
    ) -> Iterator[Answered]:
        from clom.serve.remote_model import remote_answers

        return remote_answers(self.client, files, skipped, *question)


def _answers(
    predictor: Predictor,
    photos: PhotoFiles,
    files: Sequence[Path],
    skipped: list[Skipped],
    task: str | None,
    top: int,
    false_rejection: float,
) -> Iterator[Answered]:
    """Yield predictions in batches; unreadable files are appended to `skipped`."""
    import torch

    from clom.data.folders import Skipped

    for start in range(0, len(files), _BATCH):
        readable, pixels = [], []
        for path in files[start : start + _BATCH]:
            try:
                pixels.append(photos.read(path, predictor.method.image_shape[-1])[0])
                readable.append(path)
            except DataError as problem:
                skipped.append(Skipped(path, str(problem)))
        if pixels:
            answers = predictor(torch.stack(pixels), task, top, false_rejection)
            yield list(zip(readable, answers, strict=True))


def _show_answers(console: Console, batch: Answered, files: Sequence[Path]) -> None:
    from clom.data.folders import readable

    width = min(60, max(len(readable(str(path))) for path in files))
    for path, answer in batch:
        best, *others = answer.guesses
        likely = [f"{guess.class_name} {guess.confidence:.0%}" for guess in answer.guesses]
        if answer.unknown:
            text = f"unknown (most like {', '.join(likely)})"
        else:
            also = f" (or {', '.join(likely[1:])})" if others else ""
            text = f"{likely[0]}, task '{best.task}'{also}"
        say(console, f"{readable(str(path)):<{width}}  {text}")


@dataclass(frozen=True)
class _Labelled:
    """Answers to photos in folders named after a class: the class they should be answered as, and the answer."""

    paths: list[Path]
    truths: list[str]
    answers: list[str | None]


def _labelled(answer_names: dict[str, str], answered: Answered) -> _Labelled:
    from clom.data.folders import readable

    named = [(path, readable(path.resolve().parent.name), answer) for path, answer in answered]
    known = [(path, answer_names[name], answer) for path, name, answer in named if name in answer_names]
    return _Labelled(
        [path for path, _, _ in known],
        [truth for _, truth, _ in known],
        [None if answer.unknown else answer.best.class_name for _, _, answer in known],
    )


def _show_summary(console: Console, answered: Answered, labelled: _Labelled) -> None:
    """Count unknown photos, and correct ones among those in folders named after a class."""
    from clom.photos.mistakes import find_mistakes

    n_unknown = sum(answer.unknown for _, answer in answered)
    say(console, f"{len(answered)} {'photo' if len(answered) == 1 else 'photos'}, {n_unknown} unknown.")
    if labelled.paths:
        found, rejected = find_mistakes(labelled.truths, labelled.answers), labelled.answers.count(None)
        say(
            console,
            f"{found.n_photos} are in folders named after a class: {1 - found.n_mistakes / found.n_photos:.1%} of "
            f"these are correct, {rejected / found.n_photos:.1%} rejected as unknown.",
        )
        show_confused(console, found)


def _write_mistakes(notes: Console, target: Path, labelled: _Labelled, photos: PhotoFiles) -> None:
    from clom.data.folders import readable
    from clom.photos.mistakes import find_mistakes, thumbnail
    from clom.photos.mistakes_page import write_mistakes

    if not labelled.paths:
        raise UserError("No mistakes can be shown: none of the photos is in a folder named after a class of the model.")
    found = find_mistakes(labelled.truths, labelled.answers)
    files = [readable(str(path)) for path in labelled.paths]

    def picture(row: int) -> str | None:
        try:
            return thumbnail(photos.read(labelled.paths[row], _THUMBNAIL)[0])
        except DataError:  # gone since it was read
            return None

    write_mistakes(target, "Mistakes on labelled photos", found, files, picture)
    say(notes, f"Wrote the {found.n_mistakes} mistakes on {found.n_photos} photos to {target}.")


def _as_json(model: str, answered: Answered, skipped: Sequence[Skipped], false_rejection: float) -> str:
    everything = {
        "model": model,
        "false_rejection": false_rejection,
        "answers": [{"file": str(path), **answer.to_json()} for path, answer in answered],
        "unreadable": [{"file": str(file.path), "reason": file.reason} for file in skipped],
    }
    return json.dumps(everything, indent=2)


def _write_csv(target: Path, answered: Answered, skipped: Sequence[Skipped], top: int) -> None:
    """Write one row per file: the prediction, its familiarity and the top classes, or why it was skipped."""
    from clom.data.folders import readable
    from clom.files import write_atomically

    most = max(len(answer.guesses) for _, answer in answered)
    guesses = [f"{column}_{place}" for place in range(1, most + 1) for column in ("class", "confidence", "task")]
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["file", "answer", "familiarity", *guesses, "problem"])
    for path, answer in answered:
        named = [part for guess in answer.guesses for part in (guess.class_name, f"{guess.confidence:.4f}", guess.task)]
        familiarity = "" if answer.familiarity is None else f"{answer.familiarity:.4f}"
        verdict = "unknown" if answer.unknown else answer.best.class_name
        table.writerow([readable(str(path)), verdict, familiarity, *named, ""])
    for file in skipped:
        table.writerow([readable(str(file.path)), "", "", *[""] * len(guesses), file.reason])
    write_atomically(target, text.getvalue().encode())
