"""Data of your own: pictures from anywhere, as tasks of unequal size, even of a single class.

    python examples/own_data.py

In an experiment: data: {set: letters, sizes: [2, 1, 2]}, run with --plugin examples/own_data.py. Pictures in folders
and arrays in an npz file need no code at all: see own_experiment.yaml.
"""

import random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import clom
from clom.testing import check_stream

LETTERS = ("A", "B", "C", "D", "E")


@clom.register_dataset("letters")
def letters() -> clom.DataSet:
    """Letters, drawn somewhat differently each time: 30 of each to learn from and 10 to test."""
    return clom.DataSet("letters", LETTERS, drawn(30, seed=0), drawn(10, seed=1))


def drawn(per_class: int, seed: int) -> clom.Images:
    """Images are bytes, [n, channels, height, width]; a label is an index into the names of the classes."""
    chance, font = random.Random(seed), ImageFont.load_default(size=14)
    pictures, labels = [], []
    for label, letter in enumerate(LETTERS):
        for _ in range(per_class):
            picture = Image.new("L", (16, 16))
            place = chance.uniform(1, 5), chance.uniform(-3, 1)
            ImageDraw.Draw(picture).text(place, letter, fill=chance.randint(150, 255), font=font)
            pictures.append(np.asarray(picture.rotate(chance.uniform(-10, 10))))
            labels.append(label)
    return clom.Images(torch.from_numpy(np.stack(pictures))[:, None], torch.tensor(labels))


def main() -> None:
    stream = clom.split(letters(), sizes=[2, 1, 2])  # A B, then C alone, then D E
    check_stream(stream)
    # The settings of the digits suit small pictures of letters, too.
    model = clom.make_method("clom", "digits-5t", budget="smoke", image_shape=stream.image_shape)
    for number, task in enumerate(stream, start=1):
        model.learn(task)
        result = clom.evaluate(model, stream.tests[:number])
        print(f"after {' '.join(task.class_names)}: TIL {result.til:.0%}, CIL {result.preferred.cil:.0%}")


if __name__ == "__main__":
    main()
