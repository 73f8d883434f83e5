"""Names that lead to code: built in, registered, in files and modules, of installed packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from clom.errors import UserError
from clom.plugins import Registry, load_plugin, loaded
from plugin_files import SHAPES_FILE, Shape, install, write


def test_a_decorator_gives_a_name(shapes: Registry[Any]) -> None:
    @shapes.register("square")
    class Square(Shape):
        pass

    assert shapes.get("square") is Square
    assert shapes.names() == ["circle", "square"]
    assert shapes.entry("square").origin == f"module {__name__}"


@pytest.mark.parametrize("name", ["Square", "a b", "", "-x", "../x", "x:y", "ä"])
def test_names_that_cannot_be(shapes: Registry[Any], name: str) -> None:
    with pytest.raises(UserError, match=r"cannot name a shape.*lower-case"):
        shapes.register(name)


def test_a_name_is_given_once(shapes: Registry[Any]) -> None:
    class One(Shape):
        pass

    class Two(Shape):
        pass

    shapes.register("one")(One)
    with pytest.raises(UserError, match=r"a shape 'one' already \(module .*test_registry\)"):
        shapes.register("one")(Two)
    with pytest.raises(UserError, match=r"'circle' already \(built in\)"):
        shapes.register("circle")(Two)
    assert shapes.get("one") is One


def test_a_notebook_cell_may_be_run_again(shapes: Registry[Any]) -> None:
    """The same definition once more: the newer one counts."""

    def cell() -> type[Shape]:
        @shapes.register("square")
        class Square(Shape):
            pass

        return Square

    first, second = cell(), cell()
    assert first is not second
    assert shapes.get("square") is second


def test_the_wrong_type_is_refused(shapes: Registry[Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a shape"):
        shapes.register("three")(3)
    path = write(tmp_path, "things.py", SHAPES_FILE)
    with pytest.raises(UserError, match="3 is not a shape"):
        shapes.named(f"{path}:LIMIT")


def test_a_file_and_a_name_in_it(shapes: Registry[Any], tmp_path: Path) -> None:
    path = write(tmp_path, "my shapes/things.py", SHAPES_FILE)
    assert shapes.named(f"{path}:Square") == "square"
    assert shapes.get("square").__name__ == "Square"
    assert shapes.entry("square").origin == "file things.py"
    assert shapes.named(f"{path}:Named") == "my-name"
    assert shapes.named(f"{path}:Child") == "child", "an inherited name is another class's"
    assert shapes.named(f"{path}:Square") == "square", "the second time it is known"
    assert loaded() == [str(path)]


def test_a_module_and_a_name_in_it(shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "geometry/flat.py", SHAPES_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert shapes.named("geometry.flat:Square") == "square"
    assert shapes.entry("square").origin == "module geometry.flat"
    assert loaded() == ["geometry.flat"]


def test_what_a_plugin_does_not_register_is_found_by_its_name(shapes: Registry[Any], tmp_path: Path) -> None:
    assert "square" not in shapes
    load_plugin(write(tmp_path, "things.py", SHAPES_FILE))
    assert "square" in shapes
    assert shapes.get("my-name").__name__ == "Named"
    with pytest.raises(UserError, match="no shape 'limit'"):
        shapes.get("limit")
    with pytest.raises(UserError, match=r"no shape 'Child'. Did you mean 'child'"):
        shapes.get("Child")


def test_what_a_plugin_registers_has_that_name_alone(shapes: Registry[Any], tmp_path: Path) -> None:
    code = "from plugin_files import SHAPES, Shape\n@SHAPES.register('my-hexagon')\nclass Hexagon(Shape): pass\n"
    load_plugin(write(tmp_path, "things.py", code))
    assert "my-hexagon" in shapes
    with pytest.raises(UserError, match=r"no shape 'hexagon'. Did you mean 'my-hexagon'"):
        shapes.get("hexagon")


def test_misspelt_places_and_names_get_a_suggestion(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "things.py", SHAPES_FILE)
    monkeypatch.chdir(tmp_path)
    for reference, said in {
        "thing.py:Square": "no Python file thing.py. Did you mean 'things.py'",
        "things.py:Sqare": "no shape in things.py called 'Sqare'. Did you mean 'Square'",
        "things.py": "Name the shape in things.py as well: things.py:Square, things.py:Named, things.py:Child",
        "things_:Square": "'things_' cannot be imported: ModuleNotFoundError",
        "circel": "no shape 'circel'. Did you mean 'circle'",
        ":Square": "cannot be imported",
        ".things:Square": "cannot be imported",
    }.items():
        with pytest.raises(UserError, match=said.replace("(", r"\(")):
            shapes.named(reference)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    with pytest.raises(UserError, match=r"cannot be imported: .* Did you mean 'things.py'"):
        shapes.named("things:Square")


def test_code_is_loaded_only_for_whoever_names_it(shapes: Registry[Any], tmp_path: Path) -> None:
    """`get` and `entry` are for names in files: these never load a file."""
    path = write(tmp_path, "things.py", "raise SystemExit('loaded')\n")
    for look in (shapes.get, shapes.entry):
        with pytest.raises(UserError, match=r"only if the command itself names it: pass --plugin .*things.py"):
            look(f"{path}:Square")


def test_packages_bring_things_by_entry_points(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "triangles", "1.2", SHAPES_FILE, {"clom.test_shapes": {"triangle": "triangles:Square"}})
    monkeypatch.syspath_prepend(tmp_path)
    assert shapes.names() == ["circle", "triangle"]
    assert "triangles" not in sys.modules, "nothing is imported to know its name"
    assert shapes.get("triangle").__name__ == "Square"
    assert shapes.entry("triangle").origin == "package triangles 1.2"
    assert shapes.named("triangles:Square") == "triangle"


def test_a_package_may_use_the_decorator_too(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from plugin_files import SHAPES, Shape\n@SHAPES.register('rhombus')\nclass Rhombus(Shape): pass\n"
    install(
        tmp_path,
        "rhombi",
        "2",
        "from rhombi.code import Rhombus\n",
        {"clom.test_shapes": {"rhombus": "rhombi:Rhombus"}},
    )
    write(tmp_path, "rhombi/code.py", code)
    monkeypatch.syspath_prepend(tmp_path)
    assert shapes.get("rhombus").__name__ == "Rhombus"
    assert shapes.entry("rhombus").origin == "package rhombi 2"


def test_a_package_may_bring_the_work_of_another(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path, "adapter", "1", "from pentagons import Square\n", {"clom.test_shapes": {"other": "adapter:Square"}}
    )
    write(tmp_path, "pentagons.py", SHAPES_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert shapes.get("other").__module__ == "pentagons"
    assert shapes.entry("other").origin == "package adapter 1"
    assert shapes.named("pentagons:Square") == "other"


def test_a_broken_package_breaks_its_own_name_only(
    shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"clom.test_shapes": {"broken": "brokens:Square", "gone": "brokens:Gone", "circle": "brokens:Square"}}
    install(tmp_path, "brokens", "1", "1 / 0\n", points)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(
        UserWarning, match=r"The shape 'circle' of the package brokens 1 is ignored: there is one already"
    ):
        assert shapes.names() == ["circle", "broken", "gone"]
    assert shapes.get("circle").__name__ == "Circle"
    with pytest.raises(UserError, match=r"'broken' \(package brokens 1\) cannot be loaded: ZeroDivisionError"):
        shapes.get("broken")
    write(tmp_path, "brokens/__init__.py", "Square = 3\n")
    with pytest.raises(UserError, match="3 is not a shape"):
        shapes.get("broken")
    with pytest.raises(UserError, match=r"'gone' .* cannot be loaded: AttributeError"):
        shapes.get("gone")


def test_a_package_cannot_use_any_name(shapes: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "capitals", "1", SHAPES_FILE, {"clom.test_shapes": {"Square": "capitals:Square"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(
        UserWarning, match="'Square' of the package capitals 1 is ignored: the name must be of lower-case"
    ):
        assert shapes.names() == ["circle"]
