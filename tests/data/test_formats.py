"""Readers: round trips, errors that name a damaged file, and no code is run."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from clom.data import formats, unpickle
from clom.errors import DataError

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
small_arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Require that nothing is raised inside but a `DataError` that names the file."""
    try:
        yield
    except DataError as error:
        if name not in str(error):
            raise AssertionError(f"the error does not name {name}") from error


# --- IDX ---


@quick
@given(array=small_arrays, zipped=st.booleans())
def test_idx_round_trip(tmp_path: Path, array: np.ndarray, zipped: bool) -> None:
    content = idx_bytes(array)
    path = write(tmp_path / "file.gz", gzip.compress(content) if zipped else content)
    assert np.array_equal(formats.read_idx(path), array)
    assert formats.read_idx(path).shape == array.shape


@quick
@given(array=small_arrays, zipped=st.booleans(), data=st.data())
def test_the_error_for_a_truncated_idx_file_names_it(
    tmp_path: Path, array: np.ndarray, zipped: bool, data: st.DataObject
) -> None:
    content = gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array)
    path = write(tmp_path / "cut", content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DataError, match="cut"):
        formats.read_idx(path)


@quick
@given(content=st.binary(max_size=60), zipped=st.booleans())
def test_arbitrary_bytes_give_an_array_or_a_data_error(tmp_path: Path, content: bytes, zipped: bool) -> None:
    path = write(tmp_path / "noise", gzip.compress(content) if zipped else content)
    with naming("noise"):
        assert isinstance(formats.read_idx(path), np.ndarray)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_with_more_than_declared(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path / "long", pack(idx_bytes(np.zeros(3, np.uint8)) + b"x"))
    with pytest.raises(DataError, match=r"long: expected 3 = 3 bytes after the header, found more"):
        formats.read_idx(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_with_a_huge_declared_size_is_rejected_before_reading(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    path = write(tmp_path / "moon", pack(header + b"\0" * 1000))
    with pytest.raises(DataError, match=r"moon: expected .* too small to hold them"):
        formats.read_idx(path)


def test_idx_decompresses_no_more_than_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "bomb", gzip.compress(idx_bytes(np.zeros(10, np.uint8)) + b"\0" * 30_000_000))
    served = 0
    original = gzip.GzipFile.read

    def counting(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal served
        chunk = original(self, size)
        served += len(chunk)
        return chunk

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    with pytest.raises(DataError, match="bomb"):
        formats.read_idx(path)
    assert served == 4 + 4 + 10 + 1


def test_idx_of_other_type_and_absent_file(tmp_path: Path) -> None:
    floats = write(tmp_path / "floats", struct.pack(">BBBBI", 0, 0, 13, 1, 1) + b"\0" * 4)
    with pytest.raises(DataError, match=r"floats: expected an IDX file of bytes .* found '00 00 0d 01'"):
        formats.read_idx(floats)
    with pytest.raises(DataError, match="absent"):
        formats.read_idx(tmp_path / "absent")


def test_idx_images_and_labels_must_match(tmp_path: Path) -> None:
    images = write(tmp_path / "images", idx_bytes(np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)))
    good = write(tmp_path / "good", idx_bytes(np.array([1, 0], np.uint8)))
    found = formats.read_idx_images(images, good, 2)
    assert found.pixels.shape == (2, 1, 4, 3)
    assert found.pixels.flatten().tolist() == list(range(24))
    assert found.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="good: expected labels from 0 to 0, found 0 to 1"):
        formats.read_idx_images(images, good, 1)
    with pytest.raises(DataError, match="three: expected 2 labels"):
        formats.read_idx_images(images, write(tmp_path / "three", idx_bytes(np.zeros(3, np.uint8))), 2)
    with pytest.raises(DataError, match="good: expected images"):
        formats.read_idx_images(good, good, 2)


# --- CIFAR ---


def batch(n: int = 4) -> dict[object, object]:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 3072), np.uint8)
    return {b"data": pixels, b"labels": list(range(n)), b"batch_label": b"one of \xff", b"empty": b""}


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("text_keys", [True, False])
def test_cifar_batch_round_trip(tmp_path: Path, protocol: int, module: bytes, text_keys: bool) -> None:
    content = {key.decode() if text_keys and isinstance(key, bytes) else key: value for key, value in batch().items()}
    path = write(tmp_path / "data_batch_1", renamed(pickle.dumps(content, protocol), module, protocol))
    pixels, labels = formats.read_cifar_batch(path, "labels")
    assert pixels.shape == (4, 3, 32, 32)
    assert pixels.dtype == np.uint8
    assert labels.dtype == np.int64
    expected = batch()[b"data"]
    assert isinstance(expected, np.ndarray)
    assert np.array_equal(pixels.reshape(4, 3072), expected)
    assert labels.tolist() == [0, 1, 2, 3]


def renamed(pickled: bytes, module: bytes, protocol: int) -> bytes:
    """The pickle as another numpy version would write it (frames and short strings have length prefixes)."""
    own = np.zeros(1).__reduce__()[0].__module__.encode()
    if protocol < 4:
        return pickled.replace(b"c" + own + b"\n", b"c" + module + b"\n")
    out = pickled.replace(b"\x8c" + bytes([len(own)]) + own, b"\x8c" + bytes([len(module)]) + module)
    assert out[2:3] == b"\x95"
    (length,) = struct.unpack("<Q", out[3:11])
    return out[:3] + struct.pack("<Q", length + len(module) - len(own)) + out[11:]


def test_published_python_2_form(tmp_path: Path) -> None:
    """The opcodes of the published files, written by Python 2: byte strings where Python 3 has text."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    raw = bytes(range(256)) * 12
    kind = (
        b"cnumpy\ndtype\n"
        + string(b"u1")
        + b"K\0K\1\x87R(K\3"
        + string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + string(b"b") + b"\x87R"
    array += b"(K\1K\1M\x00\x0c\x86" + kind + b"\x89" + string(raw) + b"tb"
    path = write(tmp_path / "b", b"\x80\2}(" + string(b"data") + array + string(b"labels") + b"]K\7a" + b"u.")
    pixels, labels = formats.read_cifar_batch(path, "labels")
    assert pixels.tobytes() == raw
    assert labels.tolist() == [7]


class Evil:
    """Creates a file when unpickled by an ordinary reader."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_runs_no_code(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    path = write(tmp_path / "evil_batch", pickle.dumps(batch() | {b"labels": Evil(target)}, protocol))
    with pytest.raises(DataError, match="evil_batch"):
        formats.read_cifar_batch(path, "labels")
    assert not target.exists()
    pickle.loads(path.read_bytes())
    assert target.exists(), "the pickle is harmless, so the test proves nothing"


@pytest.mark.parametrize(
    "name",
    [
        "builtins eval",
        "numpy load",
        "numpy fromfile",
        "numpy.core.multiarray scalar",
        "_codecs decode",
        "numpy.f2py os",
    ],
)
def test_other_names_are_rejected(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "p", b"\x80\2c" + name.replace(" ", "\n").encode() + b"\n.")
    with pytest.raises(DataError, match=f"it uses '{name.replace(' ', '.')}'"):
        unpickle.load_dictionary(path)


@pytest.mark.parametrize(
    "name", ["_codecs\nencode", "numpy\nndarray", "numpy\ndtype", "numpy._core.multiarray\n_reconstruct"]
)
def test_a_file_cannot_change_the_stand_ins(tmp_path: Path, name: str) -> None:
    state = b"N}U\x05_makeNs\x86"  # (None, {"_make": None}): attributes set by BUILD
    path = write(tmp_path / "p", b"\x80\2c" + name.encode() + b"\n" + state + b"b.")
    with pytest.raises(DataError, match="it tries to change a function"):
        unpickle.load_dictionary(path)
    assert formats.read_cifar_batch(write(tmp_path / "good", pickle.dumps(batch(), 2)), "labels")[1].tolist() == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": None}, "expected 'data' to be bytes .* found nothing"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, r"found uint8 \[4, 3071\]"),
        ({b"data": np.zeros((4, 3072), np.float32)}, "found float32"),
        ({b"data": np.zeros((), np.uint8)}, "expected 'data'"),
        ({b"data": np.array(["a"], object)}, "not of numbers"),
        ({b"labels": None}, "expected 'labels' to be a list"),
        ({b"labels": [0, 1, 2]}, "expected 4 labels in 'labels', found 3"),
        ({b"labels": [0, 1, 2, "x"]}, "expected 'labels' to be a list of integers"),
        ({b"labels": [0, 1, 2, -3]}, "found -3 to 2"),
        ({b"labels": [0, 1, 2, 10**30]}, "expected labels"),
    ],
)
def test_cifar_batch_with_wrong_content(tmp_path: Path, change: dict[object, object], message: str) -> None:
    path = write(tmp_path / "bad_batch", pickle.dumps(batch() | change, 4))
    with pytest.raises(DataError, match=f"bad_batch.*{message}"):
        formats.read_cifar_batch(path, "labels")


@quick
@given(data=st.data(), protocol=st.sampled_from([2, 4]))
def test_a_damaged_cifar_batch_is_rejected_or_still_valid(tmp_path: Path, data: st.DataObject, protocol: int) -> None:
    content = bytearray(pickle.dumps(batch(1), protocol))
    ends = st.one_of(st.integers(0, 150), st.integers(len(content) - 60, len(content) - 1))  # the rest is pixels
    position = data.draw(ends)
    damaged = content[:position] if data.draw(st.booleans()) else content
    if damaged is content:
        content[position] ^= data.draw(st.integers(1, 255))
    path = write(tmp_path / "damaged", bytes(damaged))
    with naming("damaged"):
        pixels, labels = formats.read_cifar_batch(path, "labels")
        assert len(pixels) == len(labels)


@pytest.mark.parametrize("store", [b"r\xff\xff\xff\x7f", b"p2147483647\n"])
def test_a_pickle_cannot_allocate_a_huge_table(tmp_path: Path, store: bytes) -> None:
    with pytest.raises(DataError, match=r"huge.*more memory than its size justifies"):
        unpickle.load_dictionary(write(tmp_path / "huge", b"\x80\2}" + store + b"."))


def test_truncated_pickle_and_other_content(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cut"):
        unpickle.load_dictionary(write(tmp_path / "cut", pickle.dumps(batch(), 4)[:500]))
    with pytest.raises(DataError, match="list: expected a pickled dictionary, found list"):
        unpickle.load_dictionary(write(tmp_path / "list", pickle.dumps([1], 4)))
    with pytest.raises(DataError, match="absent"):
        unpickle.load_dictionary(tmp_path / "absent")


def test_cifar_names(tmp_path: Path) -> None:
    path = write(tmp_path / "meta", pickle.dumps({b"label_names": [b"cat", "dog"]}, 2))
    assert formats.read_cifar_names(path, "label_names") == ("cat", "dog")
    with pytest.raises(DataError, match="meta: expected 'fine_label_names'"):
        formats.read_cifar_names(path, "fine_label_names")


# --- Tiny-ImageNet ---


def jpeg(colour: tuple[int, int, int] | int, side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two classes with two training images and one validation image each, listed unsorted in wnids.txt."""
    root = tmp_path / "tiny-imagenet-200"
    colours: dict[str, tuple[int, int, int]] = {"n02": (200, 20, 20), "n01": (20, 20, 200)}
    for wnid, colour in colours.items():
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image\n")
        for number in range(2):
            write(images / f"{wnid}_{number}.JPEG", jpeg(colour))
    (root / "val" / "images").mkdir(parents=True)
    write(root / "val" / "images" / "val_0.JPEG", jpeg(colours["n02"]))
    write(root / "val" / "images" / "val_1.JPEG", jpeg(90))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbullfrog\n")
    return root


def test_tiny_imagenet(tiny: Path) -> None:
    train, test, names = formats.read_tiny_imagenet(tiny)
    assert names == ("goldfish", "bullfrog")
    assert train.pixels.shape == (4, 3, 32, 32)
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert test.labels.tolist() == [1, 0]
    mean = train.pixels.float().mean((2, 3))
    assert mean[0, 2] > 180
    assert mean[3, 0] > 180
    grey = test.pixels[1].float().mean((1, 2))
    assert torch.allclose(grey, torch.full((3,), 90.0), atol=3)


def test_tiny_imagenet_without_lists_and_with_shared_words(tiny: Path) -> None:
    (tiny / "words.txt").write_text("n01\tfrog\nn02\tfrog, toad\n")
    assert formats.read_tiny_imagenet(tiny)[2] == ("n01", "n02")
    (tiny / "words.txt").unlink()
    (tiny / "wnids.txt").unlink()
    assert formats.read_tiny_imagenet(tiny)[2] == ("n01", "n02")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"GIF89a" + b[6:]])
def test_the_error_for_a_corrupt_tiny_imagenet_image_names_it(tiny: Path, damage: Callable[[bytes], bytes]) -> None:
    picture = tiny / "train" / "n02" / "images" / "n02_1.JPEG"
    picture.write_bytes(damage(picture.read_bytes()))
    with pytest.raises(DataError, match=r"n02_1\.JPEG: expected an image, but it is damaged"):
        formats.read_tiny_imagenet(tiny)


def test_tiny_imagenet_with_wrong_files(tiny: Path) -> None:
    val = tiny / "val" / "images" / "val_0.JPEG"
    write(val, jpeg(10, side=65))
    with pytest.raises(DataError, match=r"val_0\.JPEG: expected 64 x 64 pixels, found \(65, 65\)"):
        formats.read_tiny_imagenet(tiny)
    val.unlink()
    with pytest.raises(DataError, match=r"val_0\.JPEG: expected an image, found no file"):
        formats.read_tiny_imagenet(tiny)
    (tiny / "val" / "val_annotations.txt").write_text("../val_0.JPEG\tn02\t0\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt, line 1"):
        formats.read_tiny_imagenet(tiny)
    (tiny / "wnids.txt").write_text("n01\nn03\n")
    with pytest.raises(DataError, match=r"n03.images: expected JPEG images of this class, found none"):
        formats.read_tiny_imagenet(tiny)


# --- npz and digits ---


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    np.savez(path, images=images, labels=np.array([1, 0], np.uint8))
    found = formats.read_npz_images(path, 2)
    assert found.pixels.shape == (2, 3, 4, 5)
    assert np.array_equal(found.pixels.numpy().transpose(0, 2, 3, 1), images)
    assert found.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"a\.npz: expected labels from 0 to 0"):
        formats.read_npz_images(path, 1)


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((2, 4, 4, 3), np.uint8)},
        {"images": np.zeros((2, 4, 4, 3)), "labels": np.zeros(2, np.uint8)},
        {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(3, np.uint8)},
        {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([None, 1], object)},
    ],
)
def test_npz_with_wrong_content(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"wrong\.npz: expected"):
        formats.read_npz_images(path, 10)
    with pytest.raises(DataError, match=r"cut\.npz"):
        formats.read_npz_images(write(tmp_path / "cut.npz", path.read_bytes()[:-30]), 10)
    with pytest.raises(DataError, match=r"absent\.npz"):
        formats.read_npz_images(tmp_path / "absent.npz", 10)


# --- decompression bombs ---------------------------------------------------------------------------------------------

_PAIRS = b")" + b"2\x86" * 60  # nested pairs of equal pairs, which take exponential time to hash


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}" + _PAIRS + b"K\x01s.",
        b"\x80\x02}(" + _PAIRS + b"K\x01u.",
        b"\x80\x02(" + _PAIRS + b"K\x01d.",
        b"\x80\x04\x8f(" + _PAIRS + b"\x90.",
        b"\x80\x04(" + _PAIRS + b"\x91.",
        b"\x80\x02cnumpy\ndtype\n" + _PAIRS + b"\x85R.",
        b"\x80\x05\x96" + struct.pack("<Q", 3 * 10**9) + b"abc.",
        b"\x80\x02" + b"N0" * 1_000_001 + b"}.",
    ],
    ids=["key", "keys", "dictionary", "set", "frozen set", "type", "3 GB", "two million instructions"],
)
def test_a_pickle_cannot_run_forever(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="bomb is not a usable data file"):
        unpickle.load_dictionary(write(tmp_path / "bomb", content))


@quick
@given(st.recursive(st.integers() | st.binary(max_size=9) | st.text(max_size=9) | st.none(), lambda v: st.lists(v)))
def test_plain_values_in_a_pickle_are_read(tmp_path: Path, value: object) -> None:
    for protocol in (0, 1, 2, 4):
        path = write(tmp_path / "values", pickle.dumps({"a": value, "b": {"c": value}}, protocol))
        if protocol > 2:  # older protocols turn text into bytes, or bytes into calls
            assert unpickle.load_dictionary(path) == {"a": value, "b": {"c": value}}
        else:
            assert set(unpickle.load_dictionary(path)) == {"a", "b"}


@quick
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=255), st.booleans())
def test_any_idx_shape_is_rejected_or_correct(tmp_path: Path, shape: list[int], zipped: bool) -> None:
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    path = write(tmp_path / "shape", gzip.compress(header) if zipped else header)
    with naming("shape"):
        assert formats.read_idx(path).shape == tuple(shape)


def test_files_that_decompress_to_too_much_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_DATA_BYTES", 1000)
    packed = gzip.compress(idx_bytes(np.zeros(1001, np.uint8)))
    with pytest.raises(DataError, match="more than any data set has"):
        formats.read_idx(write(tmp_path / "bomb", packed))
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((1, 32, 32, 1), np.uint8), labels=np.zeros(1, np.int64))
    with pytest.raises(DataError, match=r"bomb.npz: expected 'images.npy' to hold 1000 bytes or fewer"):
        formats.read_npz_images(tmp_path / "bomb.npz", 10)


@quick
@given(st.text(max_size=80) | st.tuples(st.integers(-5, 10**12), st.integers(-5, 10**12)).map(
    lambda shape: f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}"
))  # fmt: skip
def test_npz_headers_with_a_wrong_declared_size(tmp_path: Path, header: str) -> None:
    text = header.encode("latin-1", "replace")
    path = tmp_path / "header.npz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(50))
        packed.writestr("labels.npy", b"")
    with pytest.raises(DataError, match=r"header\.npz"):
        formats.read_npz_images(path, 10)


@quick
@given(st.text("n012\t/.\0\nJPEGval_ ", max_size=40))
def test_any_annotation_is_rejected_or_read(tiny: Path, text: str) -> None:
    (tiny / "val" / "val_annotations.txt").write_text(text)
    with naming("val"):
        formats.read_tiny_imagenet(tiny)


def test_an_image_may_be_listed_only_once(tiny: Path) -> None:
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\nval_0.JPEG\tn01\n")
    with pytest.raises(DataError, match=r"val_annotations.txt, line 2: 'val_0.JPEG' is listed twice"):
        formats.read_tiny_imagenet(tiny)


def test_class_names_cannot_point_outside_the_folder(tiny: Path) -> None:
    (tiny / "wnids.txt").write_text("../../elsewhere\nn01\n")
    with pytest.raises(DataError, match=r"wnids.txt: expected WordNet ids .* found '../../elsewhere'"):
        formats.read_tiny_imagenet(tiny)


def test_a_tiny_imagenet_image_in_a_format_that_runs_a_program(tiny: Path) -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(x) run\n"
    write(tiny / "train" / "n02" / "images" / "n02_1.JPEG", eps)
    with pytest.raises(DataError, match=r"n02_1\.JPEG: expected an image, but it is damaged"):
        formats.read_tiny_imagenet(tiny)


# --- digits ----------------------------------------------------------------------------------------------------------


def test_digits() -> None:
    digits = formats.read_digits()
    assert digits.train.pixels.shape[1:] == (1, 8, 8)
    assert len(digits.train) + len(digits.test) == 1797
    assert (int(digits.train.pixels.min()), int(digits.train.pixels.max())) == (0, 255)
    tested = torch.bincount(digits.test.labels)
    total = tested + torch.bincount(digits.train.labels)
    assert torch.equal(tested, total // 5)  # every fifth image of each class
    again = formats.read_digits()
    assert torch.equal(again.test.pixels, digits.test.pixels)
