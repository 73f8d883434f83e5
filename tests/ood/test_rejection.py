"""Familiarity, thresholds and rejection rates, by hand and as properties."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clom.errors import UserError
from clom.ood.rejection import HeldOutScores, is_unknown

FOUR = HeldOutScores((1.0, 2.0, 3.0, 5.0))


def test_within_the_held_out_scores_it_is_the_conformal_p_value() -> None:
    assert [FOUR.familiarity(score) for score in (1.0, 1.5, 2.0, 4.9, 5.0, 99.0)] == [0.4, 0.4, 0.6, 0.8, 1.0, 1.0]


def test_below_them_it_has_an_exponential_tail() -> None:
    """The (upper) median of 1, 2, 3, 5 is 3; the lower half lies 2 and 1 below it: the scale is 1.5."""
    assert FOUR.familiarity(1.0 - 1.5) == pytest.approx(math.exp(-1) / 5)
    assert FOUR.familiarity(1.0 - 15) == pytest.approx(math.exp(-10) / 5)
    assert FOUR.familiarity(-math.inf) == 0.0


def test_scores_may_be_in_any_order() -> None:
    assert HeldOutScores.of([3.0, 1.0, 5.0, 2.0]) == FOUR


def test_equal_scores_have_no_tail() -> None:
    assert HeldOutScores((2.0, 2.0)).familiarity(1.0) == 0.0
    assert HeldOutScores((2.0,)).familiarity(1.99) == 0.0
    assert HeldOutScores((2.0,)).familiarity(2.0) == 1.0


def test_without_held_out_images_nothing_is_unknown() -> None:
    nothing = HeldOutScores(())
    assert nothing.familiarity(0.0) is None
    assert not is_unknown(nothing.familiarity(-99.0), 0.99)
    assert nothing.rejected_share(0.5) == 0.0
    assert nothing.threshold(0.5) == -math.inf


def test_familiarity_zero_is_unknown_even_at_rate_zero() -> None:
    assert is_unknown(0.0, 0.0)
    assert not is_unknown(1e-300, 0.0)


def test_thresholds_by_hand() -> None:
    """The lowest of four has p = 2/5: the threshold is 1 at rate 0.3, 2 at 0.4, in the tail at 0.1, and 1 at 0.2, which
    the tail reaches only there."""
    for rate, score in {0.3: 1.0, 0.4: 2.0, 0.5: 2.0, 0.6: 3.0, 0.99: 5.0, 0.2: 1.0}.items():
        assert FOUR.threshold(rate) == score
    assert FOUR.threshold(0.1) == pytest.approx(1 + 1.5 * math.log(0.5), rel=1e-12)
    assert HeldOutScores.of(map(float, range(1, 20))).threshold(0.05) == 1.0
    assert HeldOutScores.of(map(float, range(1, 40))).threshold(0.05) == 2.0


def test_at_rate_zero_only_extremely_low_scores_are_rejected() -> None:
    lowest = FOUR.threshold(0.0)
    assert lowest == pytest.approx(1 - 1.5 * 745, rel=0.01)
    assert FOUR.familiarity(math.nextafter(lowest, -math.inf)) == 0.0


def test_how_surely_a_rate_holds() -> None:
    """With 19 scores the threshold for 5% is the lowest, and the share below it has density 19 (1 - p)^18: quantiles
    1 - q^(1/19). For 1% there is no such score; for 10% the share is beta(2, 18)."""
    nineteen = HeldOutScores(tuple(map(float, range(19))))
    assert nineteen.expected_rejection(0.05) == pytest.approx((1 - 0.95 ** (1 / 19), 1 - 0.05 ** (1 / 19)))
    assert nineteen.expected_rejection(0.01) == pytest.approx((0.0, 1 - 0.05 ** (1 / 19)))
    low, high = nineteen.expected_rejection(0.1)
    assert beta_two(low) == pytest.approx(0.05)
    assert beta_two(high) == pytest.approx(0.95)
    assert HeldOutScores(()).expected_rejection(0.05) == (0.0, 1.0)


def beta_two(p: float) -> float:
    """The chance that at least two of 19 uniform numbers are below p."""
    return 1 - (1 - p) ** 19 - 19 * p * (1 - p) ** 18


def test_rates_hold_for_new_scores() -> None:
    """Exchangeable scores: the mean rejected share over many draws is k / (n + 1)."""
    chance = random.Random(0)
    shares = []
    for _ in range(400):
        own = HeldOutScores.of(chance.gauss(0, 1) for _ in range(39))
        new = [chance.gauss(0, 1) for _ in range(50)]
        shares.append(sum(is_unknown(own.familiarity(score), 0.1) for score in new) / 50)
    assert sum(shares) / len(shares) == pytest.approx(4 / 40, abs=0.01)


def test_the_rejected_share_is_a_step_function() -> None:
    nineteen = HeldOutScores(tuple(map(float, range(19))))
    assert [nineteen.rejected_share(rate) for rate in (0.0, 0.05, 0.099, 0.1, 0.15, 0.5)] == [
        0.0, 0.0, 0.0, 1 / 19, 2 / 19, 9 / 19
    ]  # fmt: skip


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0, math.nan])
def test_invalid_rates(rate: float) -> None:
    with pytest.raises(UserError, match="false-rejection"):
        FOUR.threshold(rate)


own = st.lists(st.floats(-1e6, 1e6) | st.integers(-2, 2).map(float), min_size=1, max_size=60).map(HeldOutScores.of)
rates = st.floats(0, 0.999) | st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9])


@given(own, rates)
def test_the_rejected_share_never_exceeds_the_rate(scores: HeldOutScores, rate: float) -> None:
    assert scores.rejected_share(rate) <= rate


@given(own, st.floats(-2e6, 2e6), st.floats(0, 1e6))
def test_a_higher_score_is_never_less_familiar(scores: HeldOutScores, score: float, more: float) -> None:
    low, high = scores.familiarity(score), scores.familiarity(score + more)
    assert low is not None
    assert high is not None
    assert 0 <= low <= high <= 1


@given(own, rates, st.floats(-2e6, 2e6))
def test_a_threshold_is_the_lowest_score_that_is_not_unknown(scores: HeldOutScores, rate: float, score: float) -> None:
    threshold = scores.threshold(rate)
    for value in (score, *scores.ascending, threshold, math.nextafter(threshold, -math.inf)):
        assert is_unknown(scores.familiarity(value), rate) == (value < threshold)
