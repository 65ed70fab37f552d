"""Goal: private files, whole writes, honest errors, no store on a network. Method: a real directory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

FULL = Path("/dev/full")


def test_a_new_file_is_private_and_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    os.close(disk.create_file(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(AlreadyExists, match=str(path)):
        disk.create_file(path)


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    disk.make_directory(tmp_path / "d")
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic") as caught:
        disk.open_file(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(AlreadyExists):
        disk.create_file(tmp_path / "link")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=str(tmp_path / "none")):
        disk.open_file(tmp_path / "none")


def test_writes_go_beyond_one_vector_and_keep_their_order(tmp_path: Path) -> None:
    fd = disk.create_file(tmp_path / "a")
    buffers = [bytes((i % 251,)) * (i % 5) for i in range(3 * disk.IOV_MAX + 7)]
    assert disk.write_all(fd, buffers, 100) == sum(map(len, buffers))
    assert disk.read_exact(fd, 10**6, 100) == b"".join(buffers)
    assert disk.read_exact(fd, 3, 10**6) == b""
    os.close(fd)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: list[bytes], offset: int) -> int:
        return real(fd, [b"".join(buffers)[:7]], offset)

    fd = disk.create_file(tmp_path / "a")
    monkeypatch.setattr(os, "pwritev", short)
    data = [b"abcde", memoryview(b"fghijklmn"), b"", b"o" * 20]
    assert disk.write_all(fd, data, 0) == 34
    assert disk.read_exact(fd, 100, 0) == b"".join(data)
    os.close(fd)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_unavailable_and_names_the_path(tmp_path: Path) -> None:
    fd = os.open(FULL, os.O_WRONLY)
    with pytest.raises(Unavailable, match=r"a-path cannot be written at 5.*Free space"):
        disk.write_all(fd, [b"x"], 5, Path("a-path"))
    segment = bucket_directory("s3://bucket/store") / "ledgers" / "5.ledger"
    with pytest.raises(Unavailable, match=r"5\.ledger cannot be written at 5.*Retry: .* a smaller bucketCacheBytes"):
        disk.write_all(fd, [b"x"], 5, segment)
    os.close(fd)


def test_preallocated_space_reads_as_zeros(tmp_path: Path) -> None:
    fd = disk.create_file(tmp_path / "a")
    disk.preallocate(fd, 0, 5000)
    disk.preallocate(fd, 0, 0)
    assert disk.read_exact(fd, 10_000, 0) == bytes(5000)
    os.close(fd)


def test_a_real_directory_is_suitable_and_left_clean(tmp_path: Path) -> None:
    disk.require_suitable(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "s3fs", "fuse.goofys", "fuse.dbfs"])
def test_network_file_systems_are_refused_by_type(tmp_path: Path, kind: str) -> None:
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n"
    with pytest.raises(Refused, match=rf"{tmp_path}.*\({kind}\).*ledger serve"):
        disk.require_suitable(tmp_path / "deep" / "er", mounts=mounts)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "9p", "tmpfs", "virtiofs"])
def test_local_file_systems_are_taken(tmp_path: Path, kind: str) -> None:
    mounts = f"server:/x / nfs rw 0 0\nnone {tmp_path} {kind} rw 0 0\n"
    disk.require_suitable(tmp_path, mounts=mounts)


def test_the_deepest_and_the_latest_mount_count(tmp_path: Path) -> None:
    inner = tmp_path / "with space"
    inner.mkdir()
    escaped = str(inner).replace(" ", r"\040")
    mounts = f"a {tmp_path} ext4 rw 0 0\nb {escaped} ext4 rw 0 0\nc {escaped} nfs rw 0 0\n"
    disk.require_suitable(tmp_path, mounts=mounts)
    with pytest.raises(Refused, match="nfs"):
        disk.require_suitable(inner, mounts=mounts)


def test_a_directory_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    with pytest.raises(Refused, match="a second lock was granted"):
        disk.require_suitable(tmp_path, mounts="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("os.posix_fallocate", errno.EOPNOTSUPP),
        ("os.fdatasync", errno.EINVAL),
        ("os.fsync", errno.EINVAL),
        ("fcntl.flock", errno.ENOLCK),
    ],
)
def test_a_file_system_that_cannot_do_it_is_refused_saying_what_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(call, cannot)
    said = rf"{tmp_path} on {tmp_path} \(odd\) cannot keep a store: .*{os.strerror(number)}"
    with pytest.raises(Refused, match=rf"{said}.*a local disk .*through `ledger serve`"):
        disk.require_suitable(tmp_path, mounts=f"none {tmp_path} odd rw 0 0\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Refused, match=os.strerror(number)):
        Store.open(tmp_path / "store", settings=Settings(), clock=lambda: 1, create=True)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_full_disk_is_not_an_unsuitable_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(Unavailable, match=f"{tmp_path} cannot keep a store: No space left"):
        disk.require_suitable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_that_nobody_writes_are_left_as_they_are(tmp_path: Path) -> None:
    data, beside = tmp_path / "a", tmp_path / "b"
    data.write_bytes(b"data")
    before = data.stat().st_ino
    assert not disk.take_from_writer(data, beside)
    assert data.stat().st_ino == before


@pytest.mark.parametrize("with_second", [True, False])
def test_a_writer_that_lives_keeps_files_without_names(tmp_path: Path, with_second: bool) -> None:
    data, beside = tmp_path / "a", tmp_path / "b"
    held = disk.create_file(data)
    disk.hold(held)
    second = disk.create_file(beside)
    os.write(held, b"data")
    os.write(second, b"beside")
    if not with_second:
        beside.unlink()
    assert disk.take_from_writer(data, beside)
    os.write(held, b" and more")
    os.write(second, b" and more")
    assert data.read_bytes() == b"data"
    assert (beside.read_bytes() if beside.exists() else None) == (b"beside" if with_second else None)
    assert not disk.take_from_writer(data, beside), "nobody holds the copies"
    os.close(held)
    os.close(second)


def test_what_was_only_reserved_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    fd = disk.create_file(path)
    disk.preallocate(fd, 0, 1 << 20)
    os.pwrite(fd, b"x", 300_000)
    found = list(disk.data_ranges(fd, 0, 1 << 20))
    assert any(start <= 300_000 < end for start, end in found)
    assert all(0 <= start < end <= 1 << 20 for start, end in found)
    assert list(disk.data_ranges(fd, 1 << 20, 1 << 20)) == []
    os.ftruncate(fd, 100)
    assert list(disk.data_ranges(fd, 100, 1 << 20)) == [], "beyond the end of the file"
    os.close(fd)


def test_a_mapping_is_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    with disk.opened(path) as fd:
        assert bytes(disk.mapped(fd)) == b""
    path.write_bytes(b"bytes")
    with disk.opened(path) as fd:
        assert bytes(disk.mapped(fd)) == b"bytes"


@pytest.mark.parametrize("known", [True, False])
def test_spread_extents_keep_the_length_and_end_with_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    if not known:
        monkeypatch.setattr(disk, "_FALLOCATE", None)
    with (tmp_path / "file").open("wb") as file:
        fd = file.fileno()
        disk.preallocate(fd, 0, 1 << 16)
        before = os.fstat(fd)
        disk.spread_extents(fd)
        spread = os.fstat(fd)
        assert spread.st_size == before.st_size
        assert spread.st_blocks - before.st_blocks >= (4 * 4096 // 512 if known else 0)
        os.ftruncate(fd, spread.st_size)
        assert os.fstat(fd).st_blocks <= before.st_blocks + 4096 // 512, "at most the block of extents is left"
    disk.spread_extents(999_999)  # a file that is closed


@pytest.mark.parametrize("known", [True, False])
def test_write_back_hint_reports_nothing_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    if not known:
        monkeypatch.setattr(disk, "_SYNC_FILE_RANGE", None)
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 10_000)
        file.flush()
        disk.begin_sync(file.fileno())
        disk.sync_data(file.fileno())
    disk.begin_sync(999_999)  # a file that is closed
