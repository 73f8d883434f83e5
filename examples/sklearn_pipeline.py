"""CLOM as a scikit-learn classifier: in a pipeline, class by class, and with a word for what it does not know.

python examples/sklearn_pipeline.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import clom


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)

    # In a pipeline, as any classifier. `fit` learns the digits 0, 1, 2, then 3, 4, 5; 64 features are 8 x 8 pixels.
    # Fewer steps than the default of 400, and small batches, so that this takes seconds.
    learner = clom.ClomClassifier(
        classes_per_task=3, steps=60, settings={"learning": {"plan": {"batch": 16}}}, random_state=0
    )
    pipeline = make_pipeline(MinMaxScaler(), learner)
    pipeline.fit(X_train[y_train < 6], y_train[y_train < 6])
    print(f"six digits: {pipeline.score(X_test[y_test < 6], y_test[y_test < 6]):.1%} right")

    # Does it notice what it was never taught? Random pixels are nothing like a digit.
    noise = np.random.default_rng(0).uniform(0, 16, (100, 64))
    for name, images in {"digits it knows": X_test[y_test < 6], "random pixels": noise}.items():
        unknown = ~learner.belongs(pipeline[:-1].transform(images))
        print(f"called unknown: {unknown.mean():.0%} of {name}")

    # More classes later: `partial_fit` needs their images alone. What was learned before stays as it is, bit by bit.
    learner.partial_fit(pipeline[:-1].transform(X_train[y_train >= 6]), y_train[y_train >= 6])
    print(f"all ten digits: {pipeline.score(X_test, y_test):.1%} right")


if __name__ == "__main__":
    main()
