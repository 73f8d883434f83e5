"""Networks by name: their settings, errors, and use by all methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

import clom
import plugin_files
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.config import RunConfig, resolve
from clom.nets import AlexNet, AlexNetSettings, make_net
from clom.nets.layers import Net
from clom.nets.networks.kinds import network_kind, read_net_settings
from clom.nets.networks.registry import NETS
from clom.nets.plain import Backbone
from clom.settings import Positive, Settings
from nets.plain_networks import Residual
from plugin_files import NETWORK, write


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with plugin_files.clean(NETS):
        yield


class Tiny(nn.Module):
    """Two convolutions."""

    def __init__(
        self, width: int = 8, depth: int = 1, image_size: int = 0, activation: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), activation())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images).mean((2, 3))
        return features


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["alexnet", "resnet18", "pooled-conv", "efficientnet-lite0"])
def test_built_in_networks(kind: str) -> None:
    settings = read_net_settings({"kind": kind})
    assert settings.kind == kind
    assert type(settings).model_fields["kind"].default == kind
    assert type(settings).__module__.startswith("clom.nets.")
    assert read_net_settings(settings) is settings
    assert read_net_settings(settings.model_dump(mode="json")) == settings


def test_keywords_of_the_constructor_are_settings() -> None:
    clom.register_network("tiny")(Tiny)
    settings = read_net_settings({"kind": "tiny", "width": 5})
    assert settings.model_dump() == {"kind": "tiny", "width": 5, "depth": 1}, "no image size, no classes"
    net = network_kind("tiny").build(settings, 9)
    assert isinstance(net, Tiny)
    assert net.image_size == 9
    assert net.n_features == 5
    with pytest.raises(ValidationError, match="wdth"):
        read_net_settings({"kind": "tiny", "wdth": 5})
    with pytest.raises(ValidationError, match="valid integer"):
        read_net_settings({"kind": "tiny", "width": "wide"})
    assert type(settings) is type(read_net_settings({"kind": "tiny"})), (
        "must be one class, so that settings are comparable"
    )


def test_a_factory_without_annotations() -> None:
    @clom.register_network("factory")
    def factory(width=4, dropout=0, channels=(1, 2), name=None):  # type: ignore[no-untyped-def]
        return nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(192, width))

    settings = read_net_settings({"kind": "factory", "dropout": 0.5, "channels": [3, 4]})
    assert settings.model_dump() == {"kind": "factory", "width": 4, "dropout": 0.5, "channels": (3, 4), "name": None}
    assert network_kind("factory").build(settings, 8).n_features == 4


class TinySettings(Settings):
    width: Positive = 6


class PlainSettings(BaseModel):
    width: int = 6


@pytest.mark.parametrize("given", [TinySettings, PlainSettings])
def test_a_settings_class(given: type[TinySettings | PlainSettings]) -> None:
    def annotated(settings: Any) -> nn.Module:
        assert isinstance(settings, given)
        return Tiny(settings.width)

    annotated.__annotations__["settings"] = given
    clom.register_network("annotated")(annotated)
    clom.register_network("explicit", settings_type=given)(lambda settings: Tiny(settings.width))
    clom.register_network("keywords", settings_type=given)(lambda width: Tiny(width))
    for kind in ("annotated", "explicit", "keywords"):
        settings = read_net_settings({"kind": kind, "width": 3})
        assert settings.model_dump() == {"kind": kind, "width": 3}
        assert network_kind(kind).build(settings, 8).n_features == 3
        with pytest.raises(ValidationError, match="frozen"):
            settings.width = 4  # type: ignore[attr-defined]


def test_a_built_in_network_under_another_name() -> None:
    @clom.register_network("my-alexnet")
    class Mine(AlexNet):
        pass

    settings = read_net_settings({"kind": "my-alexnet", "hidden": 7})
    assert isinstance(settings, AlexNetSettings)
    assert isinstance(make_net(settings, 28), Mine)
    assert read_net_settings({"kind": "alexnet"}).kind == "alexnet"


def test_a_run_records_the_settings_of_any_network() -> None:
    clom.register_network("tiny")(Tiny)
    config = resolve("digits-5t", "finetune", "smoke", overrides={"net.kind": "tiny", "net.width": 5})
    assert config.net.model_dump() == {"kind": "tiny", "width": 5, "depth": 1}, (
        "must contain nothing of the experiment's network"
    )
    assert config.plugins == {"network": f"module {__name__}"}
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config
    assert config.overrides == {"net.kind": "tiny", "net.width": 5, "net.depth": 1}
    with pytest.raises(UserError, match=r"no setting 'net.wdth'. Did you mean 'width'"):
        resolve("digits-5t", "finetune", "smoke", overrides={"net.kind": "tiny", "net.wdth": 5})
    with pytest.raises(UserError, match=r"no network 'tinny'. Did you mean 'tiny'"):
        resolve("digits-5t", "finetune", "smoke", overrides={"net.kind": "tinny"})


# --- invalid networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (3, "'3' is not a network"),
        (dict, "'dict' is not a network: it must be a class derived from torch.nn.Module"),
        (nn.Flatten(), r"not as an instance \(Flatten\)"),
    ],
)
def test_anything_but_a_network_is_rejected(thing: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        clom.register_network("thing")(thing)
    assert "thing" not in NETS


def no_network() -> Any:
    return 3


def broken() -> nn.Module:
    raise RuntimeError("no weights")


def wrong_claim() -> nn.Module:
    net = Tiny(4)
    net.n_features = 5  # type: ignore[assignment]
    return net


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (no_network, "'odd' is not a module: its function returned 3"),
        (broken, "'odd' cannot be built: RuntimeError: no weights"),
        (nn.Identity, r"'odd' must return features .*it returned shape \(2, 3, 8, 8\)"),
        (lambda: nn.Conv2d(3, 4, 3), r"it returned shape \(2, 4, 6, 6\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(10, 4)), "does not work on images of 3 x 8 x 8: RuntimeError"),
        (wrong_claim, "has n_features = 5, but returns 4 features"),
        (lambda settings: Tiny(), "'settings' of the network 'odd' needs a settings class"),
        (lambda kind: Tiny(), "parameter 'kind' needs another name"),
    ],
)
def test_networks_that_do_not_work(maker: Any, message: str) -> None:
    clom.register_network("odd")(maker)
    with pytest.raises(UserError, match=message):
        network_kind("odd").build(read_net_settings({"kind": "odd"}), 8)


def test_a_parameter_that_is_not_json_compatible() -> None:
    def odd(layer: nn.Module) -> nn.Module:
        return layer

    clom.register_network("odd")(odd)
    with pytest.raises(UserError, match=r"'layer' has a type that is not JSON-compatible. Give it a default"):
        network_kind("odd")


# --- methods ---------------------------------------------------------------------------------------------------------

SMALL: dict[str, dict[str, Any]] = {
    **{name: {"plan__epochs": 1} for name in ("finetune", "joint", "lwf-r", "icarl", "bic", "derpp", "pass", "co2l")},
    "muc": {"plan__epochs": 1, "ood": "noise", "side_training__plan__epochs": 1},
    "mnemonics": {"plan__epochs": 1, "exemplars__plan__epochs": 1},
    **{name: {"learning__plan__epochs": 1} for name in ("hat", "clom", "supsup", "supsup-ood", "clom-odin")},
}


@pytest.mark.parametrize("method", SMALL)
def test_every_method_accepts_a_custom_network(method: str, tiny_stream: Stream, tmp_path: Path) -> None:
    clom.register_network("tiny")(Tiny)
    model = clom.make_method(method, "digits-5t", "smoke", net__kind="tiny", net__width=12, **SMALL[method])
    images = tiny_stream.tests[0].pixels
    model.learn(tiny_stream[0])
    before = model.block(images, 0)
    model.learn(tiny_stream[1])
    if model.exact_memory:
        assert torch.equal(model.block(images, 0), before)
    clom.save_model(tmp_path / "model.safetensors", model)
    again = clom.load_model(tmp_path / "model.safetensors")
    assert all(torch.equal(*pair) for pair in zip(again.blocks(images), model.blocks(images), strict=True))


@pytest.mark.parametrize("method", ["hat", "clom"])
def test_a_custom_residual_network_forgets_nothing(method: str, tiny_stream: Stream) -> None:
    clom.register_network("residual")(Residual)
    options: dict[str, Any] = {"net__kind": "residual", "net__width": 8, "net__stages": 2, "learning__plan__epochs": 2}
    model = clom.make_method(method, "digits-5t", "smoke", **options)
    images, blocks = torch.cat([test.pixels for test in tiny_stream.tests]), list[Tensor]()
    for task in tiny_stream:
        model.learn(task)
        blocks.append(model.blocks(images)[-1])
    assert all(torch.equal(*pair) for pair in zip(model.blocks(images), blocks, strict=True))
    kept = {name: value.clone() for name, value in model.sub_network(2).items()}
    model.forget(1)
    assert all(torch.equal(value, kept[name]) for name, value in model.sub_network(1).items())


def test_a_network_may_reshape_by_view(tiny_stream: Stream) -> None:
    """`view` needs a contiguous memory layout."""

    @clom.register_network("viewer")
    class Viewer(Tiny):
        def forward(self, images: Tensor) -> Tensor:
            values: Tensor = self.layers(images)
            return values.view(len(images), -1)[:, ::5] + images.view(len(images), -1)[:, :1]

    model = clom.make_method("lwf-r", "digits-5t", "smoke", net__kind="viewer", plan__epochs=1)
    for task in tiny_stream:
        model.learn(task)
    assert torch.isfinite(model.block(tiny_stream.tests[0].pixels, 0)).all()


def test_a_shared_network_is_not_converted() -> None:
    clom.register_network("tiny")(Tiny)
    model = clom.make_method("finetune", "digits-5t", "smoke", net__kind="tiny")
    names = {name for name in model.state_dict() if name.startswith("backbone.")}
    assert names == {f"backbone.net.{name}" for name in Tiny().state_dict()}


def test_masked_methods_need_a_convertible_network() -> None:
    clom.register_network("normed")(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8)))
    with pytest.raises(
        UserError,
        match=r"cannot be converted to a gated network: the layer '2' \(LayerNorm\).* Use a method without masks",
    ):
        clom.make_method("hat", "digits-5t", "smoke", net__kind="normed")
    clom.make_method("finetune", "digits-5t", "smoke", net__kind="normed")


def test_a_custom_gated_network() -> None:
    @clom.register_network("gated")
    class Gated(AlexNet):
        def __init__(self, hidden: int = 8, image_size: int = 8) -> None:
            settings = AlexNetSettings(channels=(4, 4, 4), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=hidden)
            super().__init__(settings, image_size)

    settings = read_net_settings({"kind": "gated", "hidden": 6})
    assert isinstance(make_net(settings, 8), Gated)
    assert isinstance(Backbone(settings, 8).net, Net)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_model_file_records_the_origin_of_its_network(tiny_stream: Stream, tmp_path: Path) -> None:
    code, path = write(tmp_path, "my_net.py", NETWORK), tmp_path / "model.safetensors"
    with plugin_files.clean(NETS):
        model = clom.make_method("finetune", "digits-5t", "smoke", net__kind=f"{code}:MyNet", plan__epochs=1)
        clom.save_model(path, model.learn(tiny_stream[0]))
    with pytest.raises(UserError, match=r"needs the network 'mynet' from my_net.py: repeat .* --plugin my_net.py"):
        clom.load_model(path)
    clom.load_plugin(code)
    assert clom.load_model(path).net_settings.model_dump() == {"kind": "mynet", "width": 8}


def test_settings_of_a_file_load_no_code(tmp_path: Path) -> None:
    code = write(tmp_path, "evil.py", "raise SystemExit('loaded')")
    with pytest.raises(UserError, match="only if the command itself names it"):
        resolve("digits-5t", "finetune", "smoke", overrides={"net.kind": f"{code}:MyNet"})
