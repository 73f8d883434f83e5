"""Folders of runs in which files were edited, or come from another run: whatever decides a result has to be noticed."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random

import yaml

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import spoil, spoil_value
from benchmarks.bad.models import as_if_learned
from benchmarks.bad.records import config, run_files, stream
from clom.errors import UserError
from clom.experiments.analysis.finished_run import read_run
from clom.experiments.ledger import Row
from clom.experiments.run import execute
from clom.experiments.run_folder import signature
from clom.storage.model_file import save_model

SIGNED = ("config.yaml", *signature.RESULTS)


@cache
def signed_files(seed: int) -> Mapping[str, bytes]:
    """A finished run as this version writes it; with another seed every signed file is another one."""
    with tempfile.TemporaryDirectory() as name:
        folder, given = Path(name) / "run", run_files()
        folder.mkdir()
        for file in ("config.yaml", "environment.json"):
            (folder / file).write_bytes(given[file])
        if seed:
            other = config().model_copy(update={"seed": seed})
            (folder / "config.yaml").write_text(yaml.safe_dump(other.model_dump(mode="json"), sort_keys=False))

        def write(stage: Path) -> None:
            for file in signature.RESULTS:
                (stage / file).write_bytes(given[file] + (b"" if file.endswith("tensors") or not seed else b"\n"))
            if seed:
                other = config().model_copy(update={"seed": seed})
                save_model(stage / "model.safetensors", as_if_learned(other, stream()))
                shutil.copy(stage / "model.safetensors", stage / "scores.safetensors")

        signature.update(folder, None, write)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _write(folder: Path, files: Mapping[str, bytes]) -> Path:
    run = folder / "run"
    run.mkdir()
    for name, content in files.items():
        (run / name).write_bytes(content)
    return run


def _mixed(names: Iterable[str]) -> Make:
    """These files from the other run."""
    other = {name: signed_files(1)[name] for name in names}
    return lambda folder, _: _write(folder, {**signed_files(0), **other})


def _edited(name: str, old: bytes, new: bytes) -> Make:
    content = signed_files(0)[name]
    assert old in content
    return lambda folder, _: _write(folder, {**signed_files(0), name: content.replace(old, new, 1)})


def _signed_as(content: bytes) -> Make:
    return lambda folder, _: _write(folder, {**signed_files(0), "signature.json": content})


def _special() -> Mapping[str, Make]:
    found = {f"another {name}": _mixed([name]) for name in (*SIGNED, "signature.json")}
    found["everything but the configuration of another run"] = _mixed([*signature.RESULTS, "signature.json"])
    found["everything but the signature of another run"] = _mixed(SIGNED)
    found["model, scores and metrics of another run"] = _mixed(signature.RESULTS[:3])
    found["more epochs"] = _edited("config.yaml", b"epochs: ", b"epochs: 1")
    found["another seed"] = _edited("config.yaml", b"seed: 0", b"seed: 7")
    found["a comment"] = _edited("config.yaml", b"\n", b"\n# nothing\n")
    found["another result"] = _edited("summary.json", b'"til": ', b'"til": 1')
    for number, text in enumerate((b"", b"{}", b"[]", b"null", b'{"config": "", "files": {"model.safetensors": [3]}}')):
        found[f"signature {number}"] = _signed_as(text)
    found["signature nested"] = _signed_as(b"[" * 100_000)
    return found


def _chance(folder: Path, randomness: Random) -> None:
    way = randomness.random()
    if way < 0.4:
        chosen = [name for name in (*SIGNED, "signature.json") if randomness.random() < 0.5]
        _mixed(chosen)(folder, randomness)
        return
    run = _write(folder, signed_files(0))
    path = run / randomness.choice((*SIGNED, "signature.json", "environment.json"))
    if path.suffix == ".yaml" and way < 0.7:
        text = yaml.safe_dump(spoil_value(yaml.safe_load(path.read_text()), randomness), allow_unicode=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(spoil(path.read_bytes(), randomness))


def _read(folder: Path) -> None:
    """Read it in every way; a folder whose files do not belong together must be refused in every way."""
    run = folder / "run"
    together = any(all((run / name).read_bytes() == signed_files(seed)[name] for name in SIGNED) for seed in (0, 1))
    problem: UserError | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (Row.of_run, read_run, lambda place: execute(config(), stream(), place)):
            try:
                read(run)
            except UserError as refused:
                problem = refused
            else:
                assert together, f"{read} accepted files that do not belong together"
    if problem is not None:
        raise problem


def readers() -> list[Reader]:
    def command(folder: Path) -> list[str]:
        return ["record", str(folder / "run"), "--ledger", str(folder / "ledger.jsonl")]

    return [Reader("signed runs", _special, _chance, _read, command)]
