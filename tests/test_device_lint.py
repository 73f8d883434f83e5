"""No tensor is created without a device where a device matters: what a network or a method computes with.

Random draws come from CPU generators and are moved; buffers and parameters move with their module. What stays on the
CPU for a reason is listed here by function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "clom"
CHECKED = ("nets", "learning", "methods", "data/views.py", "data/memory.py", "data/stratified.py")
FACTORIES = {"zeros", "ones", "empty", "full", "arange", "eye", "linspace", "rand", "randn", "tensor", "from_numpy"}
MOVED_BY = {"to", "register_buffer", "Parameter", "_constant"}
ON_THE_CPU = {
    "data/views.py:_colour_basis": "a constant, moved where it is used",
    "data/stratified.py:balanced_rows": "ranked on the CPU, where the rows are drawn, then moved",
    "learning/calibration.py:identity": "calibrations live on the CPU, like the scores they are for",
    "learning/calibration.py:fit_to_memory": "a tiny problem in float64, solved on the CPU",
    "learning/calibration.py:_fit_as_in_the_paper": "a tiny problem in float64, solved on the CPU",
    "learning/distributed.py:require_same": "a message between processes",
    "learning/losses.py:supervised_contrastive": "a number, not an array",
    "learning/nearest_mean.py:herd": "herding picks one image after another, on the CPU",
    "learning/precision.py:network_pass": "measures the CPU",
    "learning/protection/supermask.py:__init__": "initial values, the same on every device, moved right away",
    "learning/protection/supermask.py:signed_constant": "initial values, copied into parameters",
    "learning/schedule.py:scores": "sums in float64, which not every device has",
    "methods/a_rps/method.py:_fisher": "nothing to compute from",
    "methods/a_rps/paths.py:__init__": "module numbers, read by the host",
    "methods/co2l.py:rounded": "plain numbers",
    "methods/families/base.py:strongest": "scores are on the CPU",
    "methods/families/graphs.py:__init__": "export runs on the CPU",
    "methods/families/masked_network.py:sub_network": "a number, not an array",
    "methods/families/masked_network.py:_blocks": "scores are on the CPU",
    "methods/families/masked.py:_fit_to_memory": "calibration runs on the CPU",
    "methods/families/masked.py:calibrations": "calibrations live on the CPU",
    "methods/families/masked.py:set_fitted": "moved right below",
    "methods/families/shared.py:columns": "picks columns of scores, which are on the CPU",
    "methods/owm.py:_learn": "a step counter of the host",
    "nets/convert/__init__.py:_check_equal": "compares two networks on the CPU before any training",
    "nets/convert/tracing.py:trace": "a dummy pass on the CPU before any training",
    "nets/growth.py:_resized": "initial values, the same on every device, moved right away",
    "nets/networks/kinds.py:_set_n_features": "a dummy pass on the CPU before any training",
    "nets/plain.py:grow": "initial values, the same on every device; moved when a task is opened",
    "nets/plain.py:imprint": "a number, not an array",
}


def files() -> Iterator[Path]:
    for name in CHECKED:
        place = ROOT / name
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def without_device(source: str) -> Iterator[tuple[str, int]]:
    """Function and line of every factory call that neither names a device nor is moved or drawn from a generator."""

    def visit(node: ast.AST, function: str, moved: bool) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.FunctionDef):
            function, moved = node.name, False
        elif isinstance(node, ast.stmt):
            moved = False
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            of_torch = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "torch"
            named = {keyword.arg for keyword in node.keywords} & {"device", "generator"}
            if of_torch and called in FACTORIES and not named and not moved:
                yield function, node.lineno
            moved = moved or called in MOVED_BY
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, moved)

    return visit(ast.parse(source), "", False)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tensors_are_created_on_a_device(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    found = {f"{name}:{function}": line for function, line in without_device(path.read_text(encoding="utf-8"))}
    unexpected = {place: line for place, line in found.items() if place not in ON_THE_CPU}
    assert not unexpected, "name a device, take it from an input, or move the result with .to(...)"


def test_the_list_names_nothing_that_is_gone() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{function}"
        for path in files()
        for function, _ in without_device(path.read_text(encoding="utf-8"))
    }
    assert set(ON_THE_CPU) <= found


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("x = torch.zeros(3)", True),
        ("x = torch.arange(n) + offsets", True),
        ("x = values[torch.tensor([0, 1])]", True),
        ("x = torch.zeros(3, device=values.device)", False),
        ("x = torch.tensor([1.0]).to(values.device)", False),
        ("x = torch.rand(3, generator=randomness)", False),
        ("self.register_buffer('x', torch.zeros(3))", False),
        ("x = nn.Parameter(torch.zeros(3))", False),
        ("x = values.new_zeros(3)", False),
    ],
)
def test_a_planted_one_is_caught(line: str, caught: bool) -> None:
    assert bool(list(without_device(f"def f():\n    {line}\n"))) is caught
