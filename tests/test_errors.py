"""Messages for user errors."""

from __future__ import annotations

from clom.errors import DataError, UserError, unknown


def test_a_misspelt_name_gets_the_closest_one_and_the_list() -> None:
    problem = unknown("experiment", "MNIST-5", ["mnist-5t", "cifar10-5t"])
    assert isinstance(problem, UserError)
    assert str(problem) == ("There is no experiment 'MNIST-5'. Did you mean 'mnist-5t'? Known: cifar10-5t, mnist-5t.")


def test_a_name_without_close_match_gets_only_the_list() -> None:
    assert str(unknown("method", "zzz", {"hat": 1, "clom": 2})) == "There is no method 'zzz'. Known: clom, hat."


def test_a_data_error_is_a_user_error() -> None:
    assert issubclass(DataError, UserError)
