"""The registry knows every system of the paper by the paper's name."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from clom.methods.families.base import Method
from clom.methods.registry import METHODS, PAPER_METHODS, method_class
from clom.reporting.paper.published import paper_experiments


def test_all_systems_of_the_paper_are_there() -> None:
    paper = json.loads((resources.files("clom.reporting.paper") / "paper.json").read_text(encoding="utf-8"))
    printed = set(paper["final_accuracy"]) | set(paper["ood_ablation"])
    assert len(printed) == 19
    assert printed <= {entry.short for entry in METHODS.values()}
    assert {name for name in PAPER_METHODS if METHODS[name].short not in printed} == {"finetune", "joint"}


def test_which_experiments_have_a_number() -> None:
    assert len(paper_experiments("CLOM")) == 6
    assert paper_experiments("CCG") == ["mnist-5t", "cifar10-5t"]
    assert paper_experiments("SupSup (OOD in CLOM)") == ["cifar10-5t", "cifar100-10t"]
    assert paper_experiments("Fine-tuning") == []


@pytest.mark.parametrize("name", METHODS)
def test_every_entry_leads_to_a_method(name: str) -> None:
    found = method_class(name)
    assert issubclass(found, Method)
    assert found.name == name or METHODS[name].preset
