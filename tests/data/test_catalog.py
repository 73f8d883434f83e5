"""Data sets by name: local files, downloads, registered functions, and errors for missing files."""

from __future__ import annotations

import ast
import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import socket
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from clom.data import catalog, formats, published_sets
from clom.data.catalog import SETS, register_dataset
from clom.data.images import DataSet, Images
from clom.data.published_sets import read_svhn_digits
from clom.data.stream import split
from clom.errors import DataError, UserError

REAL = Path(os.environ.get("CLOM_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the developer's data and cache unless a test uses an explicit path."""
    monkeypatch.delenv("CLOM_DATA", raising=False)
    monkeypatch.setattr(catalog, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mnist_files(train: bool = True) -> dict[str, bytes]:
    files = {}
    for part, count in (("train", 20), ("t10k", 10))[0 if train else 1 :]:
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(np.full((count, 28, 28), 7)), mtime=0)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(count) % 10), mtime=0)
    return files


def cifar10_files(meta: bool = True) -> dict[str, bytes]:
    def batch(value: int) -> bytes:
        return pickle.dumps({b"data": np.full((10, 3072), value, np.uint8), b"labels": list(range(10))}, 2)

    files = {f"data_batch_{number}": batch(number) for number in range(1, 6)} | {"test_batch": batch(9)}
    names = [f"kind {label}".encode() for label in range(10)]
    return files | ({"batches.meta": pickle.dumps({b"label_names": names}, 2)} if meta else {})


def place(files: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


# --- finding ---


def test_names_and_digits() -> None:
    listed = "digits mnist fashion-mnist kmnist notmnist cifar10 cifar100 tiny-imagenet svhn"
    assert catalog.names() == listed.split()
    assert all(catalog.SETS.description(name) for name in catalog.names())
    assert catalog.available("digits")
    assert catalog.load("digits", download=False).class_names == tuple("0123456789")


def test_misspelt_name() -> None:
    for ask in (catalog.load, catalog.available):
        with pytest.raises(UserError, match=r"no data set 'minst'\. Did you mean 'mnist'"):
            ask("minst")


def test_search_path_order(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalog.search_path() == [own_cache]
    monkeypatch.setenv("CLOM_DATA", str(tmp_path / "env"))
    assert catalog.search_path(tmp_path / "given") == [tmp_path / "given", tmp_path / "env", own_cache]
    assert catalog.search_path(tmp_path / "env") == [tmp_path / "env", own_cache]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("where", ["given", "env", "cache"])
def test_mnist_is_found_compressed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, zipped: bool
) -> None:
    files = mnist_files()
    if not zipped:
        files = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    place(files, tmp_path / where / "MNIST" / "raw")
    monkeypatch.setenv("CLOM_DATA", str(tmp_path / "env"))
    assert catalog.available("mnist", tmp_path / "given")
    mnist = catalog.load("mnist", tmp_path / "given", download=False)
    assert (mnist.name, mnist.class_names) == ("mnist", tuple("0123456789"))
    assert (mnist.train.pixels.shape, mnist.test.pixels.shape) == ((20, 1, 28, 28), (10, 1, 28, 28))


@pytest.mark.parametrize(
    ("name", "folder"), [("fashion-mnist", "FashionMNIST"), ("kmnist", "KMNIST"), ("notmnist", "notMNIST")]
)
def test_ood_sets_need_no_training_files(tmp_path: Path, name: str, folder: str) -> None:
    place(mnist_files(train=False), tmp_path / folder / "raw")
    found = catalog.load(name, tmp_path, download=False)
    assert (len(found.train), len(found.test), len(found.class_names)) == (0, 10, 10)
    assert found.train.pixels.shape == (0, 1, 28, 28)
    place(mnist_files(), tmp_path / folder / "raw")
    assert len(catalog.load(name, tmp_path, download=False).train) == 20
    (tmp_path / folder / "raw" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="train-labels"):
        catalog.load(name, tmp_path, download=False)


def test_training_and_test_images_of_different_sizes(tmp_path: Path) -> None:
    files = mnist_files() | {"train-images-idx3-ubyte.gz": gzip.compress(idx(np.zeros((20, 32, 32))))}
    place(files, tmp_path / "MNIST" / "raw")
    with pytest.raises(DataError, match=r"MNIST/raw do not belong together: .* \[1, 32, 32\] and \[1, 28, 28\]"):
        catalog.load("mnist", tmp_path, download=False)


def test_svhn(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    np.savez(tmp_path / "SVHN" / "test_2000.npz", images=np.zeros((3, 32, 32, 3), np.uint8), labels=np.arange(3))
    svhn = catalog.load("svhn", tmp_path, download=False)
    assert (len(svhn.train), svhn.test.pixels.shape) == (0, (3, 3, 32, 32))


def svhn_digits(labels: list[int]) -> dict[str, Any]:
    """Cropped digits as they are published: the image number comes last, and 10 is the digit 0."""
    pixels = np.zeros((32, 32, 3, len(labels)), np.uint8)
    pixels[1, 2, 0] = np.arange(len(labels)) + 7
    return {"X": pixels, "y": np.array(labels, np.uint8)[:, None]}


def test_svhn_as_published(tmp_path: Path) -> None:
    """It is preferred to the excerpt, and needs both files."""
    folder = tmp_path / "SVHN"
    folder.mkdir()
    savemat(folder / "train_32x32.mat", svhn_digits([1, 10, 9]), do_compression=True)
    assert not catalog.available("svhn", tmp_path)
    savemat(folder / "test_32x32.mat", svhn_digits([10, 2]))
    np.savez(folder / "test_2000.npz", images=np.zeros((3, 32, 32, 3), np.uint8), labels=np.arange(3))
    svhn = catalog.load("svhn", tmp_path, download=False)
    assert svhn.train.labels.tolist() == [1, 0, 9]
    assert svhn.test.labels.tolist() == [0, 2]
    assert svhn.train.pixels.shape == (3, 3, 32, 32)
    assert svhn.train.pixels[:, 0, 1, 2].tolist() == [7, 8, 9]
    assert int(svhn.train.pixels.sum()) == 24


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({**svhn_digits([1]), "X": np.zeros((3, 32, 32, 1), np.uint8)}, r"uint8 \[32, 32, 3, n\], found uint8 \[3, 32"),
        ({**svhn_digits([1]), "X": np.zeros((32, 32, 3, 1))}, r"found float64"),
        ({**svhn_digits([1, 2]), "y": np.array([[1]])}, "expected 2 labels from 1 to 10 in 'y', found 1 values"),
        (svhn_digits([1, 11]), "labels from 1 to 10"),
        ({"X": svhn_digits([1])["X"]}, "with 'X' and 'y', but 'y'"),
    ],
)
def test_svhn_of_another_kind_is_refused(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    path = tmp_path / "train_32x32.mat"
    savemat(path, content)
    with pytest.raises(DataError, match=problem):
        read_svhn_digits(path)


@pytest.mark.parametrize("keep", [0, 1, 60, 130, 200, -1])
def test_damaged_svhn_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "train_32x32.mat"
    savemat(path, svhn_digits([1, 2, 3]), do_compression=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(DataError, match=f"{path.name}: expected"):
        read_svhn_digits(path)


@pytest.mark.parametrize("meta", [True, False])
def test_cifar10_with_and_without_names(tmp_path: Path, meta: bool) -> None:
    place(cifar10_files(meta), tmp_path / "cifar-10-batches-py")
    found = catalog.load("cifar10", tmp_path, download=False)
    assert found.class_names[0] == ("kind 0" if meta else "airplane")
    assert (len(found.train), len(found.test)) == (50, 10)
    assert found.train.pixels[:, 0, 0, 0].tolist() == [n for n in range(1, 6) for _ in range(10)]


def test_cifar100_uses_fine_labels(tmp_path: Path) -> None:
    rows = {b"data": np.zeros((4, 3072), np.uint8), b"fine_labels": [99, 0, 5, 5], b"coarse_labels": [1, 1, 1, 1]}
    meta = {b"fine_label_names": [f"fine {n}".encode() for n in range(100)], b"coarse_label_names": [b"coarse"]}
    files = {"train": pickle.dumps(rows, 4), "test": pickle.dumps(rows, 4), "meta": pickle.dumps(meta, 4)}
    place(files, tmp_path / "cifar-100-python")
    found = catalog.load("cifar100", tmp_path, download=False)
    assert found.class_names == tuple(f"fine {n}" for n in range(100))
    assert found.test.labels.tolist() == [99, 0, 5, 5]


def test_the_error_for_an_invalid_label_names_the_file(tmp_path: Path) -> None:
    bad = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}
    place(cifar10_files() | {"data_batch_3": pickle.dumps(bad, 2)}, tmp_path / "cifar-10-batches-py")
    with pytest.raises(DataError, match="data_batch_3: expected labels from 0 to 9, found 10 to 10"):
        catalog.load("cifar10", tmp_path, download=False)


# --- missing files ---


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("svhn", "SVHN"), ("cifar100", "cifar-100-python")]
)
def test_the_error_for_missing_data_is_one_sentence(tmp_path: Path, own_cache: Path, name: str, folder: str) -> None:
    assert not catalog.available(name, tmp_path)
    with pytest.raises(DataError) as caught:
        catalog.load(name, tmp_path, download=False)
    message = str(caught.value)
    assert f"The data set '{name}' is not in {tmp_path}, {own_cache}: put " in message
    assert message.endswith(f" into {tmp_path / folder}.")
    assert "\n" not in message


def test_set_without_published_md5_is_never_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pooch

    monkeypatch.setattr(pooch, "retrieve", lambda *_args, **_kwargs: pytest.fail("downloaded"))
    with pytest.raises(DataError, match="put t10k-images"):
        catalog.load("kmnist", tmp_path)


def test_the_error_for_an_incomplete_folder_names_the_missing_files(tmp_path: Path) -> None:
    files = mnist_files()
    del files["t10k-labels-idx1-ubyte.gz"]
    place(files, tmp_path / "MNIST" / "raw")
    assert not catalog.available("mnist", tmp_path)
    with pytest.raises(DataError, match=r"\(incomplete: no t10k-labels-idx1-ubyte\.gz\)"):
        catalog.load("mnist", tmp_path, download=False)


# --- registered functions ---


def two_birds(name: str = "any") -> DataSet:
    images = Images(torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).to(torch.uint8), torch.tensor([0, 1]))
    return DataSet(name, ("robin", "wren"), images, images)


def test_a_registered_function_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path | None] = []

    @register_dataset("birds")
    def birds(folder: Path | None) -> DataSet:
        """Two birds."""
        asked.append(folder)
        return two_birds()

    assert catalog.names()[-1] == "birds"
    assert catalog.available("birds")
    assert catalog.load("birds").name == "birds"
    catalog.load("birds", tmp_path)
    monkeypatch.setenv("CLOM_DATA", str(tmp_path / "env"))
    catalog.load("birds")
    assert asked == [None, tmp_path, tmp_path / "env"]
    assert birds(None).class_names == ("robin", "wren"), "the decorator returns the function"
    assert catalog.SETS.description("birds") == "Two birds."
    with pytest.raises(UserError, match=r"no data set 'bird'\. Did you mean 'birds'"):
        catalog.load("bird")


def test_a_function_may_have_no_arguments_and_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my_sets.py"
    file.write_text(
        "import torch\n"
        "from clom.data.images import DataSet, Images\n"
        "def bees():\n"
        "    images = Images(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))\n"
        "    return DataSet('x', ('bee',), images, images)\n"
    )
    assert SETS.named(f"{file}:bees") == "bees"
    assert catalog.load("bees").class_names == ("bee",)
    assert SETS.entry("bees").origin == "file my_sets.py"


def test_anything_but_a_data_set_is_rejected() -> None:
    with pytest.raises(UserError, match=r"There is a data set 'mnist' already \(built in\)"):
        register_dataset("mnist")(two_birds)
    with pytest.raises(UserError, match=r"function that returns a clom.DataSet, not 7"):
        register_dataset("seven")(7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"must take one argument, the folder of data sets, or none"):
        register_dataset("pair")(lambda one, two: two_birds())

    @register_dataset("list")
    def listed() -> DataSet:
        return [1, 2]  # type: ignore[return-value]

    @register_dataset("broken")
    def broken() -> DataSet:
        return DataSet("broken", ("robin",), two_birds().train, two_birds().test)

    with pytest.raises(UserError, match=r"'list' \(module .*\) must be a clom.DataSet, but .* returned \[1, 2\]"):
        catalog.load("list")
    with pytest.raises(
        UserError, match=r"'broken' \(module .*\) could not be created: ValueError: labels must be from 0 to 0"
    ):
        catalog.load("broken")


# --- downloads, from a local server ---


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the URL at which it is served."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    root = tmp_path / "web"
    root.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def serve_from(monkeypatch: pytest.MonkeyPatch, name: str, address: str, files: dict[str, bytes]) -> None:
    downloads = tuple(
        published_sets.Download(address + file, hashlib.md5(content).hexdigest()) for file, content in files.items()
    )
    constant = name.upper().replace("-", "_")
    entry = getattr(published_sets, constant)
    monkeypatch.setattr(published_sets, constant, dataclasses.replace(entry, downloads=downloads))


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_files_are_downloaded_into_the_cache_once(
    web: tuple[Path, str], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, address = web
    place(mnist_files(), root)
    serve_from(monkeypatch, "mnist", address, mnist_files())
    assert len(catalog.load("mnist", tmp_path / "given").test) == 10
    assert sorted(path.name for path in (own_cache / "MNIST" / "raw").iterdir()) == sorted(mnist_files())
    assert not (tmp_path / "given").exists()
    for path in root.iterdir():
        path.unlink()
    assert len(catalog.load("mnist").test) == 10


def test_svhn_is_downloaded(web: tuple[Path, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, address = web
    for name, labels in (("train_32x32.mat", [1, 2, 10]), ("test_32x32.mat", [3])):
        savemat(root / name, svhn_digits(labels))
    assert [source.url for source in published_sets.SVHN.downloads] == [
        f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat" for part in ("train", "test")
    ]
    serve_from(monkeypatch, "svhn", address, {path.name: path.read_bytes() for path in sorted(root.iterdir())})
    svhn = catalog.load("svhn")
    assert (svhn.train.labels.tolist(), svhn.test.labels.tolist()) == ([1, 2, 0], [3])
    assert catalog.available("svhn")


def test_archive_is_unpacked_into_the_cache(
    web: tuple[Path, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, address = web
    archive = tar_of({f"cifar-10-batches-py/{name}": content for name, content in cifar10_files().items()})
    place({"cifar-10-python.tar.gz": archive}, root)
    serve_from(monkeypatch, "cifar10", address, {"cifar-10-python.tar.gz": archive})
    assert len(catalog.load("cifar10").train) == 50
    assert [path.name for path in own_cache.iterdir()] == ["cifar-10-batches-py"], (
        "the archive and temporary files are removed"
    )


def test_a_wrong_md5_is_rejected(web: tuple[Path, str], own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, address = web
    place(dict.fromkeys(mnist_files(), b"something else"), root)
    serve_from(monkeypatch, "mnist", address, mnist_files())
    with pytest.raises(DataError, match="does not have the published md5"):
        catalog.load("mnist")
    assert not list(own_cache.rglob("*.gz"))


def test_the_error_without_a_network_is_one_sentence(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve_from(monkeypatch, "mnist", f"http://127.0.0.1:{port}/", mnist_files())
    with pytest.raises(DataError) as caught:
        catalog.load("mnist")
    message = str(caught.value)
    assert "could not be downloaded from http://127.0.0.1" in message
    assert "(ConnectionError)" in message
    assert message.endswith(f"t10k-labels-idx1-ubyte.gz into {own_cache / 'MNIST' / 'raw'}.")
    assert len(message) < 600
    assert "\n" not in message


def test_incomplete_folder_in_the_cache_is_not_overwritten(own_cache: Path) -> None:
    place({"test_batch": b""}, own_cache / "cifar-10-batches-py")
    with pytest.raises(DataError, match="cifar-10-batches-py is incomplete: delete it"):
        catalog.load("cifar10")


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../outside", "inside/../../outside", "/outside"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archive_never_writes_outside(tmp_path: Path, name: str, kind: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    name = name if name != "/outside" else str(tmp_path / "outside")
    archive = tmp_path / f"evil.{kind}"
    archive.write_bytes((tar_of if kind == "tar.gz" else zip_of)({"ok": b"1", name: b"2"}))
    if kind == "tar.gz" and name.startswith("/"):
        catalog.unpack(archive, target)  # tarfile strips the leading slash and stays inside
    else:
        with pytest.raises(DataError, match=r"evil\."):
            catalog.unpack(archive, target)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_valid_and_truncated_archives(tmp_path: Path, kind: str) -> None:
    content = (tar_of if kind == "tar.gz" else zip_of)({"a/b": os.urandom(5000)})
    (tmp_path / f"good.{kind}").write_bytes(content)
    catalog.unpack(tmp_path / f"good.{kind}", tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b").stat().st_size == 5000
    (tmp_path / f"cut.{kind}").write_bytes(content[:2000])
    with pytest.raises(DataError, match="cut"):
        catalog.unpack(tmp_path / f"cut.{kind}", tmp_path / "out2")


@pytest.mark.parametrize("module", [catalog, formats])
def test_slow_packages_are_imported_only_when_used(module: ModuleType) -> None:
    assert module.__file__
    top = [
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    imported = {alias.name for node in top for alias in node.names} | {getattr(node, "module", None) for node in top}
    assert not {name for name in imported if name and name.partition(".")[0] in ("pooch", "sklearn", "scipy")}


# --- the real files, if available ---


def real(name: str) -> Path:
    if not catalog.available(name, REAL):
        pytest.skip(f"the files of {name} are not in {REAL}; set CLOM_DATA to the folder that has them")
    return REAL


def per_class(images: Images) -> set[int]:
    return set(torch.bincount(images.labels).tolist())


def test_real_mnist() -> None:
    mnist = catalog.load("mnist", real("mnist"), download=False)
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.train.pixels.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    stream = split(mnist, classes_per_task=2)
    assert stream.class_names == (("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"), ("8", "9"))
    assert sum(len(test) for test in stream.tests) == 10_000


@pytest.mark.parametrize("name", ["fashion-mnist", "kmnist", "notmnist"])
def test_real_ood_sets(name: str) -> None:
    found = catalog.load(name, real(name), download=False)
    assert found.test.pixels.shape[1:] == (1, 28, 28)
    assert per_class(found.test) == {1000}


def test_real_svhn() -> None:
    svhn = catalog.load("svhn", real("svhn"), download=False)
    assert svhn.test.pixels.shape == (2000, 3, 32, 32)


def test_real_cifar10() -> None:
    cifar = catalog.load("cifar10", real("cifar10"), download=False)
    assert cifar.class_names[:2] == ("airplane", "automobile")
    assert len(per_class(cifar.train)) == len(per_class(cifar.test)) == 1
    assert len(cifar.train) >= 10_000


def test_real_cifar100() -> None:
    cifar = catalog.load("cifar100", real("cifar100"), download=False)
    assert cifar.class_names[0] == "apple"
    assert cifar.class_names[99] == "worm"
    assert len(split(cifar, classes_per_task=5)) == 20
    assert len(per_class(cifar.train)) == len(per_class(cifar.test)) == 1


def test_real_tiny_imagenet(tmp_path: Path) -> None:
    """Three of its classes, by symbolic links: all 15,000 files would take seconds."""
    source = real("tiny-imagenet") / "tiny-imagenet-200"
    root = tmp_path / "tiny-imagenet-200"
    (root / "val").mkdir(parents=True)
    (root / "train").mkdir()
    (root / "val" / "images").symlink_to(source / "val" / "images")
    wnids = sorted((source / "wnids.txt").read_text().split())[:3]
    for wnid in wnids:
        (root / "train" / wnid).symlink_to(source / "train" / wnid)
    lines = (source / "val" / "val_annotations.txt").read_text().splitlines()
    kept = [line for line in lines if line.split("\t")[1] in wnids]
    (root / "val" / "val_annotations.txt").write_text("\n".join(kept))
    (root / "words.txt").symlink_to(source / "words.txt")
    tiny = catalog.load("tiny-imagenet", tmp_path, download=False)
    assert tiny.class_names == ("goldfish", "European fire salamander", "bullfrog")
    assert len(per_class(tiny.train)) == len(per_class(tiny.test)) == 1
    assert tiny.test.pixels.shape[1:] == (3, 32, 32)
