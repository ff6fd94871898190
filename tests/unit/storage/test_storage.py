"""What every storage must do; a new storage inherits StorageConformance."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fastload.errors import CorruptionError, UsageError, WriteError
from fastload.storage import LocalStorage, RemoteStorage, open_storage
from fastload.storage.base import write_error


def write(storage, name, data):
    file = storage.open_write(name)
    file.write(data)
    file.close()


class StorageConformance:
    """The kit: subclasses give the fixture ``storage``, empty, whose folder need not exist."""

    def test_a_written_file_is_read_at_any_position(self, storage):
        file = storage.open_write("a")
        for piece in (b"0123", bytearray(b"45"), memoryview(b"6789")):
            file.write(piece)
        file.close()
        source = storage.open_read("a")
        assert source.size == storage.size("a") == 10
        assert bytes(source.read(0, 10)) == b"0123456789"
        assert bytes(source.read(8, 2)) == b"89"
        assert bytes(source.read(3, 0)) == b""
        assert source.read(1, 2).readonly
        assert source.path.endswith("/a")

    def test_a_view_outlives_its_file(self, storage):
        write(storage, "a", b"0123456789")
        source = storage.open_read("a")
        view = source.read(2, 3)
        source.close()
        storage.delete("a")
        assert bytes(view) == b"234"

    def test_an_empty_file(self, storage):
        write(storage, "a", b"")
        assert storage.open_read("a").size == 0
        assert bytes(storage.open_read("a").read(0, 0)) == b""

    def test_a_missing_file(self, storage):
        with pytest.raises(FileNotFoundError):
            storage.open_read("missing")
        assert not storage.exists("missing")
        storage.delete("missing")

    def test_a_file_is_never_written_twice(self, storage):
        write(storage, "a", b"first")
        with pytest.raises(WriteError, match="exists already"):
            storage.open_write("a")
        assert bytes(storage.open_read("a").read(0, 5)) == b"first"

    def test_an_aborted_file_leaves_nothing(self, storage):
        file = storage.open_write("a")
        file.write(b"half")
        file.abort()
        assert not storage.exists("a")
        assert storage.list() == []

    def test_abort_after_close_does_nothing(self, storage):
        file = storage.open_write("a")
        file.write(b"whole")
        file.close()
        file.abort()
        assert storage.exists("a")

    def test_publish_replaces(self, storage):
        storage.publish("m", b"one")
        storage.publish("m", b"two")
        assert bytes(storage.open_read("m").read(0, 3)) == b"two"
        assert storage.list() == ["m"]

    def test_publish_checks_what_is_there(self, storage):
        seen = []
        storage.publish("m", b"one", seen.append)
        storage.publish("m", b"two", seen.append)
        assert seen == [None, b"one"]

    def test_a_refused_publish_changes_nothing(self, storage):
        storage.publish("m", b"one")

        def refuse(now):
            raise WriteError("no")

        with pytest.raises(WriteError, match="no"):
            storage.publish("m", b"two", refuse)
        assert bytes(storage.open_read("m").read(0, 3)) == b"one"
        assert storage.list() == ["m"]

    def test_list_is_sorted_and_empty_where_there_is_no_folder(self, storage):
        assert storage.list() == []
        for name in ("b", "a", "ä"):
            write(storage, name, b"x")
        assert storage.list() == ["a", "b", "ä"]
        storage.delete("b")
        assert storage.list() == ["a", "ä"]

    def test_modified(self, storage):
        write(storage, "a", b"x")
        modified = storage.modified("a")
        assert modified is None or modified > 1.6e9

    def test_adopt_copies_from_any_storage(self, storage, tmp_path):
        source = LocalStorage(str(tmp_path / "source"))
        write(source, "a", b"0123456789")
        write(source, "empty", b"")
        storage.adopt(source, "a", "b")
        storage.adopt(source, "empty", "c")
        assert bytes(storage.open_read("b").read(0, 10)) == b"0123456789"
        assert storage.size("c") == 0
        with pytest.raises(FileNotFoundError):
            storage.adopt(source, "missing", "d")
        assert storage.list() == ["b", "c"]

    def test_it_is_pickled_without_what_is_open(self, storage):
        write(storage, "a", b"x")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.url == storage.url
        assert copy.list() == ["a"]


class TestLocal(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(tmp_path / "deep" / "folder")

    def test_a_shortened_file_is_refused(self, storage):
        write(storage, "a", b"0123456789")
        with pytest.raises(CorruptionError):
            storage.open_read("a").read(5, 10)

    def test_hard_links_where_possible(self, storage, tmp_path):
        source = LocalStorage(str(tmp_path / "source"))
        write(source, "a", b"0123456789")
        storage.adopt(source, "a", "b")
        assert os.stat(os.path.join(storage.local_path, "b")).st_nlink == 2

    def test_an_unwritable_target(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(WriteError, match=r"not a folder|exists already") as caught:
            open_storage(tmp_path / "file" / "folder").open_write("a")
        assert caught.value.path is not None

    def test_a_full_disk(self, tmp_path):
        if sys.platform == "win32":
            pytest.skip("Windows has no RLIMIT_FSIZE")
        program = (
            "import resource, sys\n"
            "from fastload.storage import LocalStorage\n"
            "from fastload.errors import WriteError\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "file = LocalStorage(sys.argv[1]).open_write('a')\n"
            "try:\n    file.write(bytes(2000))\n"
            "except WriteError as error:\n    print(error)\n    file.abort()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert "larger than is allowed" in done.stdout
        assert list(tmp_path.iterdir()) == []


class TestMemory(StorageConformance):
    @pytest.fixture
    def storage(self):
        return open_storage(f"memory://{uuid.uuid4().hex}/data")


class TestFsspecFiles(StorageConformance):
    """fsspec's own local files, as a stand-in for its many other filesystems."""

    @pytest.fixture
    def storage(self, tmp_path):
        return RemoteStorage(f"file://{tmp_path}/data", {})


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "writing failed"),
    ],
)
def test_write_errors_are_sentences(number, sentence):
    error = write_error(OSError(number, os.strerror(number)), "d/a")
    assert sentence in str(error)
    assert error.errno == number
    assert error.path == "d/a"


def test_urls():
    assert isinstance(open_storage("file:///tmp/x"), LocalStorage)
    assert open_storage("file:///tmp/x").local_path == "/tmp/x"
    assert isinstance(open_storage("memory://x"), RemoteStorage)
    assert open_storage(Path("a/b")).url == "a/b"
    with pytest.raises(UsageError, match="cannot be opened"):
        open_storage("nonsense://x")
    with pytest.raises(UsageError, match="storage_options"):
        open_storage("/tmp/x", {"key": 1})
    with pytest.raises(UsageError, match="not a path"):
        open_storage("")
