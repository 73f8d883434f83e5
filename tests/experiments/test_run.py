"""A run from images to files: complete, reproducible, resumable, and never overwriting another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import Evaluation
from clom.experiments.config import RunConfig, resolve
from clom.experiments.run import RunResult, TaskResult, execute, is_finished
from clom.storage.model_file import load_model, save_model

FILES = {
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "progress.jsonl",
    "scores.safetensors",
    "model.safetensors",
    "summary.json",
    "signature.json",
}
TINY: dict[str, Any] = {
    "data.train_per_class": 12,
    "data.test_per_class": 5,
    "net.channels": [6, 6, 8],
    "net.hidden": 16,
    "learning.plan.batch": 8,
    "learning.plan.epochs": 2,
    "learning.head.iterations": 5,
    "memory_per_class": 2,
}


TWO_TASKS: dict[str, Any] = {"data.sizes": [2, 2], "data.classes_per_task": None}


def tiny(overrides: dict[str, Any] | None = None, *, seed: int = 0, method: str = "clom") -> RunConfig:
    return resolve("digits-5t", method, "smoke", seed, TINY | (overrides or {}))


def stream_of(config: RunConfig) -> Stream:
    return config.data.stream(None, config.seed)


def run(config: RunConfig, folder: Path) -> RunResult:
    return execute(config, stream_of(config), folder)


def without_time(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = ("minutes", "cpu_minutes", "checksum")
    return [{key: value for key, value in line.items() if key not in times} for line in lines]


def same_tensors(one: Path, two: Path) -> bool:
    first, second = load_file(one), load_file(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tiny(), tmp_path_factory.mktemp("runs") / "finished")


def test_all_files_of_a_run(finished: RunResult) -> None:
    assert {file.name for file in finished.folder.iterdir()} == FILES
    assert is_finished(finished.folder)
    config = yaml.safe_load((finished.folder / "config.yaml").read_text())
    assert RunConfig.model_validate(config) == tiny()
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert sorted(load_file(finished.folder / "scores.safetensors")) == sorted(
        f"{model}.{test}" for model in range(5) for test in range(5)
    )


def test_one_line_per_task_and_their_summary(finished: RunResult) -> None:
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["n_tasks"] for line in lines] == [1, 2, 3, 4, 5]
    assert [TaskResult.from_json(line) for line in lines] == finished.tasks
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary == finished.summary
    last = Evaluation.from_json(lines[-1])
    assert (summary["til"], summary["cil"]) == (last.til, last.preferred.cil)
    assert list(summary["cil_by_calibration"]) == ["memory", "scale", "none"]
    assert summary["til"] + summary["task_detection"] - 1 - 1e-12 <= summary["cil"]
    assert summary["cil"] <= min(summary["til"], summary["task_detection"]) + 1e-12
    assert summary["forgetting"] == 0.0
    assert summary["average_incremental_til"] == pytest.approx(sum(line["til"] for line in lines) / 5)
    for time in ("minutes", "cpu_minutes"):
        assert 0 < summary[time] == pytest.approx(sum(line[time] for line in lines))
    # 12 images per class, one of them for validation: of the two for the memory there is one, 8 x 8 bytes each.
    assert summary["memory_bytes"] == 10 * 64


def test_the_model_file_is_the_evaluated_model(finished: RunResult) -> None:
    model = load_model(finished.folder / "model.safetensors")
    assert [task.class_names for task in model.tasks] == list(finished.class_names)
    assert summary_parameters(finished) == model.n_parameters()
    scores = load_file(finished.folder / "scores.safetensors")
    for test, images in enumerate(stream_of(tiny()).tests):
        for task, block in enumerate(model.blocks(images.pixels)):
            assert torch.equal(block, scores[f"{task}.{test}"])


def summary_parameters(result: RunResult) -> int:
    return int(result.summary["parameters"])


def test_same_seed_same_result_and_another_seed_differs(finished: RunResult, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "again")
    assert without_time(tmp_path / "again") == without_time(finished.folder)
    for name in ("model.safetensors", "scores.safetensors"):
        assert same_tensors(tmp_path / "again" / name, finished.folder / name)
    run(tiny(seed=1), tmp_path / "other")
    assert not same_tensors(tmp_path / "other" / "scores.safetensors", finished.folder / "scores.safetensors")


def test_global_random_state_neither_matters_nor_changes(finished: RunResult, tmp_path: Path) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    run(tiny(), tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same_tensors(tmp_path / "scores.safetensors", finished.folder / "scores.safetensors")


def test_soft_gates_forget_and_the_scores_show_it(tmp_path: Path) -> None:
    """With s = 1 old tasks are hardly protected (the paper's ablation): scores are those of the current model."""
    config = tiny({"attention.binary": False, "attention.s_max": 1.0} | TWO_TASKS)
    run(config, tmp_path)
    model = load_model(tmp_path / "model.safetensors")
    scores = load_file(tmp_path / "scores.safetensors")
    pixels = stream_of(config).tests[0].pixels
    assert torch.equal(model.block(pixels, 0), scores["0.0"])


class Interrupted:
    """Counts learned tasks and interrupts after a number of them, as Ctrl-C would."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.learned: list[int] = []

    def __call__(self, result: TaskResult, n_tasks: int) -> None:
        self.learned.append(result.evaluation.n_tasks)
        if len(self.learned) == self.after:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_resumed(finished: RunResult, tmp_path: Path) -> None:
    config = tiny()
    with pytest.raises(KeyboardInterrupt):
        execute(config, stream_of(config), tmp_path, on_task=Interrupted(after=2))
    assert not is_finished(tmp_path)
    assert len(without_time(tmp_path)) == 2
    watch = Interrupted()
    result = execute(config, stream_of(config), tmp_path, on_task=watch)
    assert watch.learned == [3, 4, 5]
    assert without_time(tmp_path) == without_time(finished.folder)
    for name in ("model.safetensors", "scores.safetensors"):
        assert same_tensors(tmp_path / name, finished.folder / name)
    timeless = {"minutes", "cpu_minutes", "peak_memory_gb"}
    assert {k: v for k, v in result.summary.items() if k not in timeless} == {
        k: v for k, v in finished.summary.items() if k not in timeless
    }


def test_an_interruption_within_a_task_loses_that_task_only(finished: RunResult, tmp_path: Path) -> None:
    config = tiny(TWO_TASKS)
    steps = 0

    def stop(progress: object) -> None:
        nonlocal steps
        steps += getattr(progress, "task", 0) == 1
        if steps == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(config, stream_of(config), tmp_path, on_progress=stop)
    assert len(without_time(tmp_path)) == 1
    watch = Interrupted()
    execute(config, stream_of(config), tmp_path, on_task=watch)
    assert watch.learned == [2]
    assert without_time(tmp_path) == without_time(finished.folder)[:2]


def test_an_interruption_before_the_model_is_written_is_harmless(
    finished: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, scores and model are replaced together; the task is learned again and counted once."""
    config = tiny(TWO_TASKS)

    def fail_at_second(path: Path, method: Any) -> None:
        if len(method.tasks) == 2:
            raise KeyboardInterrupt
        save_model(path, method)

    with monkeypatch.context() as patch:
        patch.setattr("clom.experiments.run.save_model", fail_at_second)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path)
    assert len(without_time(tmp_path)) == 1
    watch = Interrupted()
    execute(config, stream_of(config), tmp_path, on_task=watch)
    assert watch.learned == [2]
    assert without_time(tmp_path) == without_time(finished.folder)[:2]


def test_a_finished_run_is_not_learned_again(finished: RunResult) -> None:
    before = {name: (finished.folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}
    watch = Interrupted()
    config = tiny()
    result = execute(config, stream_of(config), finished.folder, on_task=watch)
    assert watch.learned == []
    assert result.history == finished.history
    assert {name: (finished.folder / name).read_bytes() for name in before} == before


def test_a_folder_with_other_settings_is_not_touched(finished: RunResult) -> None:
    before = {file.name: file.read_bytes() for file in finished.folder.iterdir()}
    other = tiny(seed=3)
    with pytest.raises(UserError, match="other settings") as problem:
        run(other, finished.folder)
    assert str(finished.folder) in str(problem.value)
    assert {file.name: file.read_bytes() for file in finished.folder.iterdir()} == before


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match="taken"):
        run(tiny(), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.jsonl", "cut"),
        ("metrics.jsonl", "gone"),
        ("scores.safetensors", "cut"),
        ("scores.safetensors", "gone"),
        ("model.safetensors", "cut"),
    ],
)
def test_a_damaged_file_is_named(finished: RunResult, tmp_path: Path, name: str, damage: str) -> None:
    for file in finished.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if damage == "cut":
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=name):
        run(tiny(), tmp_path)


@pytest.mark.parametrize("method", ["clom-no-calibration", "clom-no-ood"])
def test_variants_run(method: str, tmp_path: Path) -> None:
    config = tiny(TWO_TASKS | {"data.sizes": [3, 2]}, method=method)
    result = run(config, tmp_path)
    preferred = "none" if method == "clom-no-calibration" else "memory"
    assert next(iter(result.summary["cil_by_calibration"])) == preferred
    assert (result.summary["memory_bytes"] == 0) == (preferred == "none")
    assert result.class_names == (("0", "1", "2"), ("3", "4"))


def test_a_method_is_told_the_number_of_classes_of_the_stream(tmp_path: Path) -> None:
    config = resolve("digits-5t", "derpp", "smoke")
    execute(config, config.data.stream(None, 0)[:2], tmp_path)
    assert load_model(tmp_path / "model.safetensors").settings.model_dump()["n_classes"] == 4


def test_methods_look_for_further_data_sets_in_the_given_folder(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "SVHN" / "test_2000.npz", images=images, labels=np.arange(5))
    one_task = {"data.sizes": [2], "data.classes_per_task": None, "data.train_per_class": 12, "ood": "svhn"}
    config = resolve("digits-5t", "muc", "smoke", 0, one_task)
    assert execute(config, stream_of(config), tmp_path / "run", data=tmp_path).summary["til"] > 0


def test_an_empty_memory_means_no_calibration(tmp_path: Path) -> None:
    config = tiny(TWO_TASKS | {"memory_per_class": 0})
    result = run(config, tmp_path)
    ways = result.history[-1].by_calibration
    assert ways["memory"] == ways["none"]
    assert result.summary["memory_bytes"] == 0
