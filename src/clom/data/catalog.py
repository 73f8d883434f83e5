"""Data sets by name: found in a local folder, or else downloaded, checked against the published md5 and unpacked."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clom.data import formats
from clom.data.images import DataSet, Images
from clom.errors import DataError, unknown


@dataclass(frozen=True)
class _Download:
    """A file on the web and its md5: an archive is unpacked, anything else belongs into the set's folder."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        return self.file.endswith((".tar.gz", ".zip"))


@dataclass(frozen=True)
class _Entry:
    """A set: the folder and files that it consists of, how to read them, and where the world keeps them."""

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], DataSet]
    downloads: tuple[_Download, ...] = ()

    def missing(self, place: Path) -> list[str]:
        return [name for name in self.files if _find(place / self.folder, name) is None]


# --- what the rest of the package uses ------------------------------------------------------------------------------


def names() -> list[str]:
    """Every data set that `load` knows."""
    return ["digits", *_ENTRIES]


def load(name: str, folder: Path | None = None, download: bool = True) -> DataSet:
    """The data set `name` from the first place that has it, downloaded into the cache where none does."""
    if name == "digits":
        return formats.read_digits()
    entry = _entry(name)
    for place in search_path(folder):
        if not entry.missing(place):
            return entry.read(place / entry.folder)
    if not download or not entry.downloads:
        raise _absent(name, entry, folder)
    return entry.read(_fetch(name, entry, folder))


def available(name: str, folder: Path | None = None) -> bool:
    """Whether `load` would find the files here; looks at names only."""
    if name == "digits":
        return True
    entry = _entry(name)
    return any(not entry.missing(place) for place in search_path(folder))


def search_path(folder: Path | None = None) -> list[Path]:
    """The places looked at, in order: the given folder, the one in `CLOM_DATA`, the cache of this machine."""
    places = [Path(given).expanduser() for given in (folder, os.environ.get("CLOM_DATA")) if given]
    return list(dict.fromkeys([*places, cache_folder()]))


def cache_folder() -> Path:
    """Where downloads go."""
    import pooch  # takes a fifth of a second

    return Path(pooch.os_cache("clom"))


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        raise unknown("data set", name, names())
    return _ENTRIES[name]


def _find(folder: Path, name: str) -> Path | None:
    """The file or folder of that name; a gzipped file may also lie there unzipped."""
    candidates = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)


def _absent(name: str, entry: _Entry, folder: Path | None, why: str = "") -> DataError:
    """The one sentence that says what was looked for and which files go where."""
    places = search_path(folder)
    looked = ", ".join(
        f"{place} (incomplete: no {', '.join(entry.missing(place))})" if (place / entry.folder).is_dir() else str(place)
        for place in places
    )
    files = ", ".join(entry.files)
    return DataError(f"The data set '{name}' is not in {looked}{why}: put {files} into {places[0] / entry.folder}.")


# --- downloads ------------------------------------------------------------------------------------------------------


def _fetch(name: str, entry: _Entry, folder: Path | None) -> Path:
    """Downloads into the cache and returns the set's folder there."""
    import pooch

    cache = cache_folder()
    for source in entry.downloads:
        if source.is_archive and (cache / entry.folder).exists():
            raise DataError(f"{cache / entry.folder} is incomplete: remove it, then it can be downloaded again.")
        target = cache if source.is_archive else cache / entry.folder
        try:
            file = pooch.retrieve(source.url, f"md5:{source.md5}", source.file, target, progressbar=True)
            if source.is_archive:
                _install(Path(file), cache, entry.folder)
        except (OSError, ValueError) as error:
            why = f" and could not be downloaded from {source.url} ({_reason(error)})"
            raise _absent(name, entry, folder, why) from error
    return cache / entry.folder


def _reason(error: Exception) -> str:
    """Short enough for a sentence: network libraries write a paragraph, of which the kind of error says enough."""
    text = " ".join(str(error).split())
    if "hash" in text and isinstance(error, ValueError):
        return "the file that came does not have the published md5"
    return text if 0 < len(text) <= 120 else type(error).__name__


def _install(archive: Path, cache: Path, folder: str) -> None:
    """Unpacks beside the target and moves it there in one step: an interrupted unpacking never looks complete."""
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        unpack(archive, Path(temporary))
        unpacked = Path(temporary) / folder
        if not unpacked.is_dir():
            raise DataError(f"{archive}: expected a folder '{folder}' inside, found none.")
        shutil.move(unpacked, cache / folder)
    archive.unlink()


def unpack(archive: Path, target: Path) -> None:
    """Unpacks a tar.gz or zip file; one with a name that points outside `target` is refused."""
    try:
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, target)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
    except DataError:
        raise
    except Exception as error:  # besides their own errors, damaged archives raise those of every layer below
        why = str(error)[:300] or type(error).__name__
        raise DataError(f"{archive}: expected a sound archive, but {why}.") from error


def _unpack_zip(archive: Path, target: Path) -> None:
    root = target.resolve()
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            if not (root / name).resolve().is_relative_to(root):
                raise DataError(f"{archive}: expected names inside the archive's folder, found '{name}'.")
        packed.extractall(root)


# --- the sets -------------------------------------------------------------------------------------------------------


def _idx_pair(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


def _read_idx_part(folder: Path, part: str, n_classes: int) -> Images:
    images, labels = (_find(folder, name) or folder / name for name in _idx_pair(part))
    return formats.read_idx_images(images, labels, n_classes)


def _idx_reader(name: str, class_names: Sequence[str]) -> Callable[[Path], DataSet]:
    """A reader for a set in MNIST's layout; one that only tests (for OOD) may come without its training files."""

    def read(folder: Path) -> DataSet:
        test = _read_idx_part(folder, "t10k", len(class_names))
        trains = any(_find(folder, file) for file in _idx_pair("train"))
        train = _read_idx_part(folder, "train", len(class_names)) if trains else _none_like(test)
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


_SVHN_FILE = "test_2000.npz"
_DIGIT_NAMES = tuple("0123456789")


def _read_svhn(folder: Path) -> DataSet:
    test = formats.read_npz_images(folder / _SVHN_FILE, len(_DIGIT_NAMES))
    return DataSet("svhn", _DIGIT_NAMES, _none_like(test), test)


_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
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

_ENTRIES = {
    "mnist": _Entry(
        "MNIST/raw",
        (*_idx_pair("train"), *_idx_pair("t10k")),
        _idx_reader("mnist", _DIGIT_NAMES),
        tuple(_Download(_MNIST_URL + file, md5) for file, md5 in _MNIST_MD5.items()),
    ),
    "fashion-mnist": _Entry("FashionMNIST/raw", _idx_pair("t10k"), _idx_reader("fashion-mnist", _FASHION_NAMES)),
    "kmnist": _Entry(
        "KMNIST/raw",
        _idx_pair("t10k"),
        _idx_reader("kmnist", ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")),
    ),
    "notmnist": _Entry("notMNIST/raw", _idx_pair("t10k"), _idx_reader("notmnist", tuple("ABCDEFGHIJ"))),
    "cifar10": _Entry(
        "cifar-10-batches-py",
        (*_CIFAR10_TRAIN, "test_batch"),
        _read_cifar10,
        (_Download(_CIFAR_URL + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    ),
    "cifar100": _Entry(
        "cifar-100-python",
        ("train", "test", "meta"),
        _read_cifar100,
        (_Download(_CIFAR_URL + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    "tiny-imagenet": _Entry(
        "tiny-imagenet-200",
        ("train", "val/images", "val/val_annotations.txt"),
        _read_tiny,
        (_Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    ),
    "svhn": _Entry("SVHN", (_SVHN_FILE,), _read_svhn),
}
