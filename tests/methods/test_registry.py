"""The registry of methods: those of the paper under the paper's labels, and plug-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clom
import plugin_files
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.experiments.distributed_run import _check_method
from clom.learning.context import TrainingContext
from clom.methods.deviations import COMMON, DEVIATIONS
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.methods.registry import BUILT_IN, METHODS, PAPER_METHODS, method_class, method_info, method_label
from clom.reporting.paper.published import paper_experiments


def test_all_methods_of_the_paper_are_registered() -> None:
    paper = json.loads((resources.files("clom.reporting.paper") / "paper.json").read_text(encoding="utf-8"))
    printed = set(paper["final_accuracy"]) | set(paper["ood_ablation"])
    assert len(printed) == 19
    # A-RPS is not published in enough detail: there is RPS-Net, which it extends.
    assert printed - {entry.short for entry in BUILT_IN.values()} == {"A-RPS"}
    assert {name for name in PAPER_METHODS if BUILT_IN[name].short not in printed} == {"finetune", "joint", "a-rps"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_deviations_from_the_publication_are_stated(name: str) -> None:
    """In sentences, for all systems but the references, which have no publication."""
    deviations = BUILT_IN[name].deviations
    assert deviations == DEVIATIONS[name]
    assert bool(deviations) == (name not in {"finetune", "joint"})
    for sentence in (*deviations, *COMMON):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "  " not in sentence
    assert len(set(deviations)) == len(deviations)


def test_every_deviation_belongs_to_a_system() -> None:
    assert list(DEVIATIONS) == list(BUILT_IN)


def test_experiments_with_a_published_result() -> None:
    assert len(paper_experiments("CLOM")) == 6
    assert paper_experiments("CCG") == ["mnist-5t", "cifar10-5t"]
    assert paper_experiments("SupSup (OOD in CLOM)") == ["cifar10-5t", "cifar100-10t"]
    assert paper_experiments("Fine-tuning") == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_entry_can_be_imported(name: str) -> None:
    found = method_class(name)
    assert issubclass(found, Method)
    assert found.name == name or BUILT_IN[name].preset


# --- plug-ins --------------------------------------------------------------------------------------------------------


class Toy(SharedNetwork):
    """A shared network that never learns.

    Lists show the first line only.
    """

    def _learn(self, task: Task, context: TrainingContext) -> None:
        pass


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with plugin_files.clean(METHODS):
        yield


def test_a_registered_method_works_like_a_built_in_one(tiny_stream: Stream, tmp_path: Path) -> None:
    class Own(Toy):
        pass

    assert clom.register_method("own")(Own) is Own
    assert Own.name == "own"
    model = clom.make_method("own", "digits-5t", "smoke", net__hidden=8)
    assert type(model) is Own
    assert type(model.settings) is SharedSettings
    config = resolve("digits-5t", "own", "smoke")
    assert config.settings == SharedSettings().model_dump(mode="json"), "no recipe: its defaults"
    model.learn(tiny_stream[0])
    clom.save_model(tmp_path / "own.safetensors", model)
    again = clom.load_model(tmp_path / "own.safetensors")
    assert type(again) is Own
    images = tiny_stream.tests[0].pixels
    assert torch.equal(again.block(images, 0), model.block(images, 0))


def test_a_method_without_settings_has_none_to_set() -> None:
    class Bare(Method):
        def _open_task(self, task: LearnedTask) -> None: ...
        def _learn(self, task: Task, context: TrainingContext) -> None: ...
        def blocks(self, pixels: Tensor) -> Blocks:
            return []

    clom.register_method("bare")(Bare)
    assert resolve("digits-5t", "bare", "smoke").settings == {}
    with pytest.raises(UserError, match="no setting 'lr'"):
        resolve("digits-5t", "bare", "smoke", overrides={"lr": 3})


def test_a_method_is_described_by_its_class() -> None:
    clom.register_method("plain")(type("Plain", (Toy,), {"__doc__": Toy.__doc__}))
    info = method_info("plain")
    assert (info.title, info.short) == ("plain: A shared network that never learns.", "plain")
    assert (info.keeps, info.divisible, info.in_paper) == ("not stated", True, False)

    clom.register_method("decorated", title="DECO: by the decorator", keeps="a log")(type("Decorated", (Toy,), {}))
    assert (method_info("decorated").short, method_info("decorated").keeps) == ("DECO", "a log")
    attributes = {"title": "OWN: by the class", "keeps": "much", "divisible": False, "deviations": ("It differs.",)}
    clom.register_method("declared")(type("Declared", (Toy,), attributes))
    info = method_info("declared")
    assert (method_info("decorated").deviations, info.deviations) == ((), ("It differs.",))
    assert (info.title, info.keeps, info.divisible) == ("OWN: by the class", "much", False)
    clom.register_method("child")(type("Child", (method_class("declared"),), {}))
    assert method_info("child").short == "child", "titles are not inherited"


def test_a_subclass_of_a_built_in_method_inherits_its_table_entry() -> None:
    clom.register_method("my-icarl")(type("MyIcarl", (method_class("icarl"),), {}))
    clom.register_method("my-owm")(type("MyOwm", (method_class("owm"),), {}))
    assert method_info("my-icarl").keeps == BUILT_IN["icarl"].keeps
    assert [method_info(name).divisible for name in ("my-icarl", "my-owm")] == [True, False]
    assert method_class("icarl").name == "icarl"


def test_the_label_of_a_missing_plug_in_is_its_name() -> None:
    assert (method_label("clom-odin"), method_label("of a plug-in elsewhere")) == (
        "CLOM (ODIN)",
        "of a plug-in elsewhere",
    )


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (3, "3 is not a method: a method is a subclass of clom.Method"),
        (dict, "'dict' is not a method"),
        (SharedNetwork, "'SharedNetwork' is not a complete method: it does not define _learn"),
        (lambda: None, "is not a method"),
    ],
)
def test_other_objects_are_refused(thing: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        clom.register_method("thing")(thing)
    assert "thing" not in METHODS


def test_built_in_names_cannot_be_taken() -> None:
    with pytest.raises(UserError, match=r"a method 'clom' already \(built in\)"):
        clom.register_method("clom")(type("Clom", (Toy,), {}))
    with pytest.raises(UserError, match="lower-case"):
        clom.register_method("Mine")
    assert method_class("clom").__module__ == "clom.methods.clom"


def test_only_divisible_methods_are_distributed() -> None:
    clom.register_method("alone")(type("Alone", (Toy,), {"divisible": False}))
    _check_method("hat")
    with pytest.raises(UserError, match="'alone' cannot be distributed"):
        _check_method("alone")
