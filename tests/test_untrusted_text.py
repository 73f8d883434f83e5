"""Text from outside is shown as escapes where a terminal would obey it, and refused in names."""

from __future__ import annotations

import pytest

from clom.errors import UserError
from clom.untrusted_text import LONGEST_NAME, check_names, on_one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("bell\a, back\b, return\r", r"bell\x07, back\x08, return\r"),
        ("delete\x7f, control \x9b1m", r"delete\x7f, control \x9b1m"),
        ("reversed \u202etxt.exe", r"reversed \u202etxt.exe"),
        ("undecodable \udc80", r"undecodable \udc80"),
        ("[bold] é 猫 👩‍🔬", "[bold] é 猫 👩‍🔬"),
    ],
)
def test_control_characters_become_escapes_and_nothing_else_does(text: str, shown: str) -> None:
    assert printable(text) == on_one_line(text) == shown


def test_line_breaks_are_layout_except_in_names() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert on_one_line("a\n\tb") == r"a\n\tb"


@pytest.mark.parametrize("name", ["", "[/b]", "été", "two words", "n" * LONGEST_NAME, "猫", "👩‍🔬"])
def test_names(name: str) -> None:
    check_names(name, [name, f"{name[:5]}?"])


@pytest.mark.parametrize("name", ["\x1b[31m", "a\nb", "a\tb", "\0", "\u202e", "\u2028", "\ud800"])
def test_names_that_a_terminal_would_obey(name: str) -> None:
    with pytest.raises(UserError, match=r"The name of the task .* contains control characters") as problem:
        check_names(name, ["a"])
    assert str(problem.value).isprintable()
    with pytest.raises(UserError, match=r"The name of the class .* contains control characters"):
        check_names("task", ["a", name])


def test_names_too_long_or_given_twice() -> None:
    with pytest.raises(UserError, match="longer than 1000"):
        check_names("t", ["n" * (LONGEST_NAME + 1)])
    with pytest.raises(UserError, match=r"Two classes of task 't' have the name 'a'"):
        check_names("t", ["a", "b", "a"])
    check_names("a", ["a"])  # a class may have the name of its task
