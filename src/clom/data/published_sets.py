"""The published data sets: files, readers and downloads.

Tested by tests/data/test_catalog.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clom.data import formats
from clom.data.images import DataSet, Images, Outline
from clom.errors import DataError
from clom.files import check_regular


@dataclass(frozen=True)
class Download:
    """A URL and its md5; archives are unpacked, other files are put into the set's folder."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        return self.file.endswith((".tar.gz", ".zip"))


@dataclass(frozen=True)
class PublishedSet:
    """A set's folder and files, its reader, what is known about its images, and its downloads."""

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], DataSet]
    outline: Outline
    downloads: tuple[Download, ...] = ()
    excerpt: str | None = None
    """A file that the reader takes in place of all others: a part of the set in another format."""

    def missing(self, place: Path) -> list[str]:
        if self.excerpt is not None and (place / self.folder / self.excerpt).exists():
            return []
        return [name for name in self.files if find(place / self.folder, name) is None]


def find(folder: Path, name: str) -> Path | None:
    """The file or folder of that name; a gzipped file may also be present uncompressed."""
    candidates = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)


def _idx_pair(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


def _read_idx_part(folder: Path, part: str, n_classes: int) -> Images:
    images, labels = (find(folder, name) or folder / name for name in _idx_pair(part))
    return formats.read_idx_images(images, labels, n_classes)


def _idx_reader(name: str, class_names: Sequence[str]) -> Callable[[Path], DataSet]:
    """A reader for a set in MNIST's layout; training files are optional, since OOD sets need only test images."""

    def read(folder: Path) -> DataSet:
        test = _read_idx_part(folder, "t10k", len(class_names))
        has_train = any(find(folder, file) for file in _idx_pair("train"))
        train = _read_idx_part(folder, "train", len(class_names)) if has_train else _none_like(test)
        return DataSet(name, tuple(class_names), train, test)

    return read


def _none_like(images: Images) -> Images:
    return Images(images.pixels[:0], images.labels[:0])


def _read_cifar(paths: Sequence[Path], label_key: str, n_classes: int) -> Images:
    batches = [(path, *formats.read_cifar_batch(path, label_key)) for path in paths]
    return Images.join([formats.as_images(path, pixels, labels, n_classes) for path, pixels, labels in batches])


_CIFAR10_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _read_cifar10(folder: Path) -> DataSet:
    meta = folder / "batches.meta"
    class_names = formats.read_cifar_names(meta, "label_names") if meta.is_file() else _CIFAR10_NAMES
    train = _read_cifar([folder / name for name in _CIFAR10_TRAIN], "labels", len(class_names))
    return DataSet("cifar10", class_names, train, _read_cifar([folder / "test_batch"], "labels", len(class_names)))


def _read_cifar100(folder: Path) -> DataSet:
    class_names = formats.read_cifar_names(folder / "meta", "fine_label_names")
    train, test = (_read_cifar([folder / part], "fine_labels", len(class_names)) for part in ("train", "test"))
    return DataSet("cifar100", class_names, train, test)


def _read_tiny(folder: Path) -> DataSet:
    train, test, class_names = formats.read_tiny_imagenet(folder)
    return DataSet("tiny-imagenet", class_names, train, test)


_SVHN_TRAIN, _SVHN_TEST, _SVHN_EXCERPT = "train_32x32.mat", "test_32x32.mat", "test_2000.npz"
_DIGIT_NAMES = tuple("0123456789")


def _read_svhn(folder: Path) -> DataSet:
    """The published cropped digits; without them the excerpt, which has test images only."""
    if (folder / _SVHN_TRAIN).exists() and (folder / _SVHN_TEST).exists():
        return DataSet(
            "svhn", _DIGIT_NAMES, read_svhn_digits(folder / _SVHN_TRAIN), read_svhn_digits(folder / _SVHN_TEST)
        )
    test = formats.read_npz_images(folder / _SVHN_EXCERPT, len(_DIGIT_NAMES))
    return DataSet("svhn", _DIGIT_NAMES, _none_like(test), test)


def read_svhn_digits(path: Path) -> Images:
    """A MATLAB file with `X`, uint8 `[32, 32, 3, n]`, and `y`, labels from 1 to 10, where 10 is the digit 0."""
    from scipy.io import loadmat  # slow to import

    check_regular(path)
    try:
        content = loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"], content["y"].ravel()
    except Exception as error:  # damaged files make the reader raise anything
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{path}: expected a MATLAB file with 'X' and 'y', but {why}.") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: expected 'X' to be uint8 [32, 32, 3, n], found {pixels.dtype} {list(pixels.shape)}.")
    if labels.shape != pixels.shape[3:] or not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{path}: expected {pixels.shape[3]} labels from 1 to 10 in 'y', found {len(labels)} values.")
    digits = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return formats.as_images(path, digits, labels.astype(np.int64) % 10, len(_DIGIT_NAMES))


_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_KMNIST_NAMES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

MNIST = PublishedSet(
    "MNIST/raw",
    (*_idx_pair("train"), *_idx_pair("t10k")),
    _idx_reader("mnist", _DIGIT_NAMES),
    Outline(28, 60_000, 10),
    tuple(Download(_MNIST_URL + file, md5) for file, md5 in _MNIST_MD5.items()),
)
FASHION_MNIST = PublishedSet(
    "FashionMNIST/raw", _idx_pair("t10k"), _idx_reader("fashion-mnist", _FASHION_NAMES), Outline(28, 60_000, 10)
)
KMNIST = PublishedSet("KMNIST/raw", _idx_pair("t10k"), _idx_reader("kmnist", _KMNIST_NAMES), Outline(28, 60_000, 10))
NOTMNIST = PublishedSet(
    "notMNIST/raw", _idx_pair("t10k"), _idx_reader("notmnist", tuple("ABCDEFGHIJ")), Outline(28, 60_000, 10)
)
CIFAR10 = PublishedSet(
    "cifar-10-batches-py",
    (*_CIFAR10_TRAIN, "test_batch"),
    _read_cifar10,
    Outline(32, 50_000, 10),
    (Download(_CIFAR_URL + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
)
CIFAR100 = PublishedSet(
    "cifar-100-python",
    ("train", "test", "meta"),
    _read_cifar100,
    Outline(32, 50_000, 100),
    (Download(_CIFAR_URL + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
)
TINY_IMAGENET = PublishedSet(
    "tiny-imagenet-200",
    ("train", "val/images", "val/val_annotations.txt"),
    _read_tiny,
    Outline(32, 100_000, 200),
    (Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
)
SVHN = PublishedSet(
    "SVHN",
    (_SVHN_TRAIN, _SVHN_TEST),
    _read_svhn,
    Outline(32, 73_257, 10),
    (
        Download(_SVHN_URL + _SVHN_TRAIN, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download(_SVHN_URL + _SVHN_TEST, "eb5a983be6a315427106f1b164d9cef3"),
    ),
    _SVHN_EXCERPT,
)
