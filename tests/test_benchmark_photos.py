"""The comparison on photos compares what it says: the same photos for all, none of them in both parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.joint_probe import joint_probe
from benchmarks.photos import (
    Folder,
    Outcome,
    Systems,
    accuracy_table,
    add_photos,
    added_table,
    measure,
    rate_table,
    read_task,
    strangers,
)
from clom.photos import presets
from photos.pictures import experts, mean_colour, pictures, write_pictures


def folder(*names: str, count: int = 12) -> Folder:
    return Folder("colours", pictures(*names, count=count))


def test_every_photo_is_in_one_part() -> None:
    everything = folder("red", "green", "blue")
    taught, test = everything.split(seed=1, per_class=5)
    assert taught.class_names == ("red", "green", "blue")
    assert taught.images.labels.bincount().tolist() == [5, 5, 5]
    assert test.labels.bincount().tolist() == [7, 7, 7]
    parts = torch.cat([taught.images.pixels, test.pixels]).flatten(1)
    assert len(torch.unique(parts, dim=0)) == len(parts) == 36
    assert not torch.equal(everything.split(seed=2, per_class=5)[0].images.pixels, taught.images.pixels)
    taught, test = everything.split(seed=1, per_class=5, without="green")
    assert taught.class_names == ("red", "blue")
    assert test.labels.bincount().tolist() == [7, 7]


def test_added_photos_are_the_next_ones() -> None:
    everything = folder("red", "green")
    first, both = (everything.split(seed=1, per_class=count)[0].images.pixels for count in (4, 6))
    added, test = everything.split(seed=1, per_class=6, known=4)
    assert added.images.labels.bincount().tolist() == [2, 2]
    assert test.labels.bincount().tolist() == [6, 6]
    joined = torch.cat([first, added.images.pixels]).flatten(1)
    assert torch.equal(torch.unique(joined, dim=0), torch.unique(both.flatten(1), dim=0))


def test_accuracy_before_and_after_photos_are_added() -> None:
    outcome, method = Outcome(), mean_colour()
    add_photos(outcome, method, [folder("red", "green"), folder("blue", "grey")], seed=0, per_class=10)
    assert [task.record.images for task in method.tasks if task.record] == [(10, 10)] * 2
    assert outcome.added == [(100.0, 100.0)]
    assert "| a system | 100.0 | 100.0 |" in "\n".join(added_table({"a system": outcome}))


def test_folders_are_joined(tmp_path: Path) -> None:
    one, two = (write_pictures(tmp_path / name, "red", "green", count=5, seed=seed) for seed, name in enumerate("ab"))
    assert len(read_task(f"{one}+{two}", 32).pictures.images) == 20
    write_pictures(tmp_path / "c", "red", "blue", count=5)
    with pytest.raises(SystemExit, match="different classes"):
        read_task(f"{one}+{tmp_path / 'c'}", 32)


def test_accuracy_rejection_and_time_of_a_system() -> None:
    outcome = Outcome()
    measure(outcome, mean_colour(), [folder("red", "green"), folder("blue", "grey")], seed=0, per_class=6)
    assert (outcome.cil, outcome.til, len(outcome.seconds)) == ([100.0], [100.0], 2)
    assert [len(rejected[0]) for rejected in outcome.rejected.values()] == [24] * 4
    assert "| a system | 100.0 |" in "\n".join(accuracy_table({"a system": outcome}))
    assert len(list(rate_table({"a system": outcome}))) == 3


def test_strangers_are_classes_left_out_and_other_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    systems, outcome = Systems("efficientnet-lite0", None), Outcome()
    monkeypatch.setattr(systems, "make", lambda name, seed: experts(seed))
    strangers(outcome, systems, "experts", [folder("red", "green", "blue"), folder("grey", "violet")], 0, 6)
    assert (len(outcome.near), len(outcome.far)) == (3, 4)
    assert all(0 <= value <= 1 for scores in (*outcome.near, *outcome.far) for value in scores)


def test_all_systems_have_the_same_cache() -> None:
    systems = Systems("efficientnet-lite0", 32)
    assert {id(getattr(systems.make(name, 0), "cache", None)) for name in presets.ON_FROZEN_FEATURES} == {
        id(systems.cache)
    }


def test_the_probe_learns_what_is_easy() -> None:
    labels = torch.arange(20) % 2
    features = torch.eye(2)[labels] + 0.01 * torch.rand(20, 2)
    assert joint_probe([(features, labels)], [(features, labels)], 2, seed=0) == 100
