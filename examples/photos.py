"""Photos from Python: teach a model folder by folder, ask it about new photos, let it forget a task.

    python examples/photos.py

The commands that do the same: clom example-photos, clom learn, clom predict, clom forget.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import clom
from clom.data.example_photos import write_example_photos
from clom.data.folders import read_picture
from clom.photos.forget import forget
from clom.photos.predict import Predictor
from clom.photos.teach import teach


def main(folder: Path) -> None:
    # Drawings, so that this runs anywhere: shapes/ and patterns/ have a folder for each class, other/ has landscapes.
    write_example_photos(folder, per_class=10)
    model_file = folder / "model.safetensors"

    # Each lesson adds the classes of one folder as a task, and changes nothing that was learned before.
    # "ncm" takes a second. Leave it out for CLOM itself, which is more accurate and takes half a minute.
    for task in ("shapes", "patterns"):
        lesson = teach(model_file, folder / task, method="ncm")
        print(f"learned {lesson.task}: {', '.join(lesson.class_names)}")

    model = clom.load_model(model_file)
    predict = Predictor(model)
    for place in ("new/circles", "new/stripes", "other"):
        files = sorted((folder / place).iterdir())
        photos = torch.stack([read_picture(file, model.image_shape[-1]) for file in files])
        for file, answer in zip(files, predict(photos), strict=True):
            what = "unknown" if answer.unknown else f"{answer.best.class_name} ({answer.best.confidence:.0%})"
            print(f"{place}/{file.name}: {what}")

    forget(model_file, "patterns")
    print("left:", ", ".join(task.name for task in clom.load_model(model_file).tasks))


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
