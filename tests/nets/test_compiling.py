"""torch.compile around networks in training: the same result with a backend that generates no code; one real run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clom.cli import main
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.experiments.provenance import recorded
from clom.learning.context import TrainingContext
from clom.methods.families.base import Method
from clom.nets import ResNet18Settings, compiling, make_net
from clom.nets.compiling import compiled_networks, require_compiler
from clom.nets.passes import PassCounter, counting

CPU = torch.device("cpu")
SMALL = {"data.train_per_class": 24, "data.test_per_class": 10}
RUN = ["run", "digits-5t", "--method", "finetune", "--budget", "smoke", "--threads", "1", "--set", "plan.epochs=1"]


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.fixture(autouse=True)
def fresh_counters() -> None:
    torch._dynamo.utils.counters.clear()


def learned(name: str, backend: str | None) -> tuple[Method, float]:
    """The method after two tasks, and their passes."""
    config = resolve("digits-5t", name, "smoke", 0, SMALL)
    stream = config.data.stream(None, 0)
    method = config.make_method(stream.image_shape)
    passes = PassCounter(1e6)
    for task in stream[:2]:
        method.learn(task, TrainingContext(compile_with=backend, passes=passes))
    return method, passes.total


@pytest.mark.filterwarnings("ignore:Task .* closed every")
@pytest.mark.parametrize("name", ["clom", "supsup", "icarl"])
def test_a_compiled_network_learns_the_same(name: str) -> None:
    plain, passes = learned(name, None)
    assert not graphs()
    compiled, same_passes = learned(name, "eager")
    assert passes == same_passes
    assert graphs(), "nothing was compiled"
    state = plain.state_dict()
    assert list(state) == list(compiled.state_dict())
    assert all(torch.equal(state[key], value) for key, value in compiled.state_dict().items())


def test_a_network_is_one_graph() -> None:
    net = make_net(ResNet18Settings(width=4), 16)
    net.add_task()
    gates = {group: torch.rand(size) for group, size in net.gate_sizes().items()}
    with compiled_networks(torch.nn.Sequential(net), "eager"):
        net(torch.rand(4, 3, 16, 16), 0, gates)
        assert graphs() == 1
        assert not torch._dynamo.utils.counters["graph_break"]
    net(torch.rand(2, 3, 16, 16), 0, gates)
    assert graphs() == 1, "it is still compiled after the context"


def test_counting_passes_compiles_nothing_more() -> None:
    """The first batch, in which a network's multiply-adds are measured, is not compiled."""
    net = make_net(ResNet18Settings(width=4), 16)
    net.add_task()
    counter = PassCounter(1e6)
    with compiled_networks(torch.nn.Sequential(net), "eager"), counting(counter):
        for _ in range(3):
            net(torch.rand(4, 3, 16, 16), 0, {})
        assert graphs() == 1
    assert counter.total > 0


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("No working C++ compiler found\nand a long trace")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UserError, match=r"C\+\+ compiler such as g\+\+ \(No working C\+\+ compiler found\)"):
        require_compiler(CPU)
    with pytest.raises(SystemExit) as end:
        main([*RUN, "--out", str(tmp_path / "run"), "--compile"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("clom: --compile does not work here")


def test_it_is_recorded_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clom.experiments.run.require_compiler", lambda device: None)
    monkeypatch.setattr("clom.experiments.run.BACKEND", "eager")
    folder, learn, used = tmp_path / "run", Method.learn, []

    def interrupted(self: Method, task: object, context: TrainingContext) -> Method:
        used.append(context.compile_with)
        if len(used) == 2:
            raise UserError("interrupted")
        return learn(self, task, context)  # type: ignore[arg-type]

    monkeypatch.setattr(Method, "learn", interrupted)
    for arguments in ([*RUN, "--out", str(folder), "--compile"], ["resume", str(folder)]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert recorded(folder)["compile"] is True
        assert recorded(folder)["earlier"] == []
    assert set(used) == {"eager"}
    assert graphs()


@pytest.mark.slow
def test_code_is_really_generated(tmp_path: Path) -> None:
    try:
        require_compiler(CPU)
    except UserError:
        pytest.skip("no compiler")
    with pytest.raises(SystemExit) as end:
        main([*RUN, "--out", str(tmp_path / "run"), "--compile"])
    assert not end.value.code
    assert compiling.BACKEND == "inductor"
    assert graphs()
