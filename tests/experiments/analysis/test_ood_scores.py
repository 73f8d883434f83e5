"""OOD scores of a finished run: results, stored outputs, and all kinds of methods."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clom.data import catalog
from clom.data.images import DataSet, Images, resized_images
from clom.errors import UserError
from clom.evaluation.metrics import auc, max_logit
from clom.experiments.analysis.ood_scores import ScoresReport, score_run
from clom.experiments.analysis.task_outputs import OutputBook
from clom.experiments.config import resolve
from clom.experiments.run import execute
from clom.methods.families.masked import MaskedMethod
from clom.storage.model_file import load_model

TINY: dict[str, Any] = {
    "data.train_per_class": 24,
    "data.test_per_class": 6,
    "data.validation": 0.25,
    "data.classes_per_task": None,
    "data.sizes": [2, 3, 2],
    "net.channels": [8, 8, 12],
    "net.hidden": 24,
    "learning.plan.epochs": 2,
    "learning.plan.batch": 8,
}
OPEN: dict[str, Any] = {"attention.sparsity_first": 0.0, "attention.sparsity_rest": 0.0}  # so that all units stay open
BLOCK_SCORES = ["MSP", "MaxLogit", "Energy", "NegEntropy", "GEN"]
FEATURE_SCORES = ["Mahalanobis", "rel. Mahalanobis", "kNN", "ViM", "ReAct"]


def make_run(folder: Path, method: str, **overrides: Any) -> Path:
    sparsity = {} if "supsup" in method or method == "hypernet" else OPEN
    config = resolve("digits-5t", method, "smoke", 0, TINY | sparsity | overrides)
    execute(config, config.data.stream(None, 0), folder)
    return folder


def noise(name: str, folder: Path | None = None, download: bool = True) -> DataSet:
    """An external data set of another size and with colours."""
    assert not download
    randomness = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (30, 3, 12, 12), generator=randomness).to(torch.uint8)
    images = Images(pixels, torch.zeros(30, dtype=torch.int64))
    return DataSet(name, ("a",), images[:0], images)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "clom", "clom")


@pytest.fixture(autouse=True)
def one_external_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only svhn is available."""
    read = catalog.load
    monkeypatch.setattr(catalog, "available", lambda name, folder=None: name in ("svhn", "digits"))
    monkeypatch.setattr(catalog, "load", lambda name, *a, **k: (noise if name == "svhn" else read)(name, *a, **k))


def check(report: ScoresReport) -> None:
    """Invariants of any result."""
    outcomes = [outcome for score in report.scores.values() for outcome in score.rules.values()]
    for outcome in (*outcomes, *report.argmax.values()):
        assert report.til + outcome.task_detection - 1 <= outcome.cil + 1e-12
        assert outcome.cil <= min(report.til, outcome.task_detection) + 1e-12
    for score in report.scores.values():
        assert list(score.rules) == ["task-then-class", "product"]
        figures = [score.auc, score.auc_validation, score.fpr95, score.aupr, score.rejection.own]
        assert all(0 <= figure <= 1 for figure in (*figures, *score.external_auc.values()))
    assert report.scores[report.best].auc_validation == max(s.auc_validation for s in report.scores.values())


def test_results_of_a_clom_run(finished: Path) -> None:
    report = score_run(finished, external=["svhn", "kmnist"])
    check(report)
    assert list(report.scores) == [*BLOCK_SCORES, "ODIN", *FEATURE_SCORES]
    assert report.external == {"svhn": 30}
    assert report.missing == ["kmnist"]
    assert report.exact_memory
    summary = json.loads((finished / "summary.json").read_text())
    assert report.til == pytest.approx(summary["til"])
    assert {name: way.cil for name, way in report.argmax.items()} == pytest.approx(summary["cil_by_calibration"])
    assert report.argmax["memory"].task_detection == pytest.approx(summary["task_detection"])
    assert report.scores["MaxLogit"].auc == pytest.approx(summary["auc_maxlogit"])  # the same for every calibration
    # Two tasks of two classes and one of three: MSP and NegEntropy are not the same score.
    assert report.scores["MSP"].auc != report.scores["Mahalanobis"].auc
    assert json.loads((finished / "scores.json").read_text()) == json.loads(json.dumps(report.to_json()))


def test_external_auc_and_rejection_by_hand(finished: Path) -> None:
    report = score_run(finished, external=["svhn"], wanted_rejection=0.25)
    result = report.scores["MaxLogit"]
    model = load_model(finished / "model.safetensors")
    config = resolve("digits-5t", "clom", "smoke", 0, TINY)
    stream = config.data.stream(None, 0)
    images = resized_images(noise("svhn", download=False).test, (1, 8, 8))
    pairs = []
    for task, test in enumerate(stream.tests):
        own, other = (max_logit(model.block(pixels, task)) for pixels in (test.pixels, images.pixels))
        pairs.append(float((own[:, None] > other[None]).double().mean()))
        assert len(torch.unique(torch.cat([own, other]))) == len(own) + len(other), (
            "no ties, which would count as a half"
        )
    assert result.external_auc["svhn"] == pytest.approx(sum(pairs) / 3, abs=1e-6)

    held_out = [max_logit(model.block(task.validation.pixels, k)).double() for k, task in enumerate(stream)]

    def eager(pixels: Tensor) -> Tensor:
        wants = [max_logit(model.block(pixels, k)).double() for k in range(3)]
        pairs = zip(wants, held_out, strict=True)
        return torch.stack([(want - own.mean()) / own.std(correction=0) for want, own in pairs]).amax(0)

    validation = torch.cat([eager(task.validation.pixels) for task in stream])
    threshold = result.rejection.threshold
    assert float((validation < threshold - 1e-6).double().mean()) <= 0.25
    assert float((validation < threshold + 1e-6).double().mean()) > 0.25 - 1 / len(validation)
    assert result.rejection.external["svhn"] == pytest.approx(float((eager(images.pixels) < threshold).double().mean()))
    tests = torch.cat([eager(test.pixels) for test in stream.tests])
    assert result.rejection.own == pytest.approx(float((tests < threshold).double().mean()))


def test_outputs_are_computed_once(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "features.safetensors").unlink(missing_ok=True)
    reports: list[tuple[int, int]] = []
    first = score_run(
        folder, external=[], on_pass=lambda done, total: reports.append((done, total)), task_predictors=False
    )
    assert reports == [(number, 18) for number in range(1, 19)]
    with monkeypatch.context() as patch:
        patch.setattr("clom.storage.model_file.check_answers", lambda *probe: None)  # which loading does
        patch.setattr(MaskedMethod, "block", forbidden)
        patch.setattr(MaskedMethod, "features", forbidden)
        assert score_run(folder, external=[], task_predictors=False) == first
        with pytest.raises(AssertionError, match="run again"):
            score_run(folder, external=["svhn"], task_predictors=False)
    more = score_run(folder, external=["svhn"], task_predictors=False)
    assert more.scores["ViM"].auc == first.scores["ViM"].auc
    # With another model in the same folder, stored outputs are not used.
    stored = load_file(folder / "features.safetensors")
    assert "external svhn.0.block" in stored
    book = OutputBook(folder, load_model(folder / "model.safetensors"))
    assert set(book._tensors) == set(stored)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert OutputBook(folder, book.method)._tensors == {}


def forbidden(*arguments: object) -> Tensor:
    raise AssertionError("a network is run again")


def test_damaged_outputs_are_recomputed(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    first = score_run(folder, external=[])
    (folder / "features.safetensors").write_bytes(b"nonsense")
    assert score_run(folder, external=[]) == first


@pytest.mark.parametrize("method", ["clom-odin", "supsup-ood"])
def test_other_masked_methods(method: str, tmp_path: Path) -> None:
    report = score_run(make_run(tmp_path / method, method), external=["svhn"])
    check(report)
    assert list(report.scores) == [*BLOCK_SCORES, "ODIN", *FEATURE_SCORES]
    if method == "clom-odin":
        assert report.scores["ODIN"] == report.scores["MaxLogit"]


def test_scores_with_unmet_needs_are_left_out(tmp_path: Path) -> None:
    """HyperNet's classifiers are generated: no features, no heads, no logits to differentiate."""
    report = score_run(make_run(tmp_path / "run", "hypernet"), external=["svhn"])
    check(report)
    assert list(report.scores) == BLOCK_SCORES
    assert not report.exact_memory
    assert report.left_out["ODIN"] == ["odin"]
    assert report.left_out["kNN"] == ["features"]
    assert report.left_out["ViM"] == ["features", "linear_head"]
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["left_out"] == report.left_out
    with pytest.raises(UserError, match=r"No score is left: hypernet .*kNN \(needs features for each task\)"):
        score_run(tmp_path / "run", external=[], scores=["knn"])


# --- scores and predictors that somebody brings ------------------------------------------------------------------

OWN = """
import torch, clom

class Distance(clom.Score):
    title = "distance"
    needs = ("features", "labels")

    def fit(self, own):
        self.mean = own.features.mean(0)
        assert own.labels.max() < own.block.shape[1]
        return self

    def __call__(self, outputs):
        assert outputs.labels is None and outputs.odin is None  # only what was declared
        return -(outputs.features - self.mean).norm(dim=1)

class Wrong(clom.Score):
    def __call__(self, outputs):
        return outputs.block

class Nowhere(clom.Score):
    def __call__(self, outputs):
        return outputs.block.amax(1) / 0

class Second(clom.TaskPredictor):
    needs = ("score",)

    def __call__(self, outputs):
        return -torch.stack([task.score for task in outputs], 1)
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_plug_in_scores_are_compared_with_the_built_in_ones(finished: Path, own_file: Path) -> None:
    built_in = score_run(finished, external=["svhn"])
    report = score_run(finished, external=["svhn"], scores=[f"{own_file}:Distance"])
    check(report)
    assert list(report.scores) == [*built_in.scores, "distance"]
    assert {name: report.scores[name] for name in built_in.scores} == built_in.scores
    # By hand: the mean distance of own and other test images to the mean of task 0's training features.
    method = load_model(finished / "model.safetensors")
    stream = resolve("digits-5t", "clom", "smoke", 0, TINY).data.stream(None, 0)
    assert 18 * 2 < 1000, "all training images are used"
    grid = []
    for model in range(3):
        mean = method.features(stream[model].train.pixels, model).mean(0)
        rows = [-(method.features(test.pixels, model) - mean).norm(dim=1) for test in stream.tests]
        grid += [auc(rows[model], rows[other]) for other in range(3) if other != model]
    assert report.scores["distance"].auc == pytest.approx(sum(grid) / 6, abs=1e-6)


def test_only_named_scores_are_computed(
    finished: Path, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "features.safetensors").unlink(missing_ok=True)
    everything = score_run(finished, external=[])
    with monkeypatch.context() as patch:
        patch.setattr(MaskedMethod, "features", forbidden)
        patch.setattr(MaskedMethod, "task_logits", forbidden)
        report = score_run(folder, external=[], scores=["energy", "max-logit"], task_predictors=False)
    assert list(report.scores) == ["Energy", "MaxLogit"]
    assert report.scores == {name: everything.scores[name] for name in report.scores}
    report = score_run(folder, external=[], scores=["vim", f"{own_file}:Distance"])  # the rest is computed now
    assert list(report.scores) == ["ViM", "distance"]
    assert report.scores["ViM"] == everything.scores["ViM"]
    with pytest.raises(UserError, match=r"no score 'enrgy'.*'energy'"):
        score_run(folder, external=[], scores=["enrgy"])


def test_plug_in_predictors_are_compared_with_the_built_in_ones(finished: Path, own_file: Path) -> None:
    report = score_run(finished, external=[], scores=["msp"], predictors=[f"{own_file}:Second"])
    rules = report.scores["MSP"].rules
    assert list(rules) == ["task-then-class", "product", "second"]
    assert rules["second"].task_detection + rules["task-then-class"].task_detection <= 1


@pytest.mark.parametrize(("name", "problem"), [("Wrong", r"shape \(\d+, 2\)"), ("Nowhere", "NaN or infinity")])
def test_a_score_with_invalid_values_is_refused(name: str, problem: str, finished: Path, own_file: Path) -> None:
    with pytest.raises(UserError, match=f"'{name.lower()}' returned {problem}"):
        score_run(finished, external=[], scores=[f"{own_file}:{name}"])


def test_a_single_task_is_compared_with_external_data_only(tmp_path: Path) -> None:
    report = score_run(make_run(tmp_path / "one", "hat", **{"data.sizes": [2]}), external=["svhn"])
    check(report)
    assert report.scores["MSP"].auc == 1.0
    assert report.scores["MSP"].fpr95 == 0.0


def test_the_linear_head_reads_rotation_0(finished: Path) -> None:
    """The first rows of the head, which the unrotated image reads in Eq. 6."""
    method = load_model(finished / "model.safetensors")
    assert isinstance(method, MaskedMethod)
    pixels = resolve("digits-5t", "clom", "smoke", 0, TINY).data.stream(None, 0).tests[1].pixels
    weight, bias = method.linear_head(1)
    assert weight.shape == (3, 24)
    by_head = method.heads[1](method.features(pixels, 1))[:, :3]
    torch.testing.assert_close(method.features(pixels, 1) @ weight.T + bias, by_head, rtol=1e-4, atol=1e-5)


# --- user errors ---------------------------------------------------------------------------------------------------


def test_user_errors(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a run"):
        score_run(tmp_path)
    with pytest.raises(UserError, match="is not the folder of a run"):
        score_run(tmp_path / "absent")
    with pytest.raises(UserError, match=r"'kmnst'.*'kmnist'"):
        score_run(finished, external=["kmnst"])
    with pytest.raises(UserError, match="This run learned 'digits'"):
        score_run(finished, external=["digits"])
    folder = shutil.copytree(finished, tmp_path / "half")
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        score_run(folder)
    (folder / "summary.json").write_text("{}")
    (folder / "config.yaml").write_text("experiment: [")
    with pytest.raises(UserError, match=r"config\.yaml"):
        score_run(folder)
