"""Checks for what people bring: each raises an AssertionError that says what is wrong and which contract it breaks.

from clom import testing

testing.check_method(lambda seed: Mine(net, settings, (1, 8, 8), seed))
testing.check_network(lambda: MyNetwork(image_size=32))
testing.check_score(MyScore)
testing.check_predictor(MyPredictor)
testing.check_stream(stream)

CLOM's own methods, networks, scores, predictors and streams pass the same checks. No test framework is needed, and no
data: `tiny_stream()` gives three small tasks.
"""

from __future__ import annotations

from clom.testing.methods import check_method
from clom.testing.networks import check_network
from clom.testing.predictors import check_predictor
from clom.testing.scores import check_score
from clom.testing.streams import check_stream, tiny_stream

__all__ = ["check_method", "check_network", "check_predictor", "check_score", "check_stream", "tiny_stream"]
