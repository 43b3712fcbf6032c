"""Vectors that are kept by content: found again, shared by processes, never trusted blindly."""

import subprocess
import sys

import numpy as np
import pytest

from simrec.data.features.content import VectorCache, cache_directory

ONE, OTHER = "ab" * 32, "cd" * 32

WRITER = """
import sys
import numpy as np
from simrec.data.features.content import VectorCache
number = int(sys.argv[1])
for start in range(number, 200, 4):
    cache = VectorCache("ab" * 32)
    contents = [b"%d" % start, b"shared %d" % (start // 8)]
    cache.vectors(contents, lambda some: np.array([[len(one)] * 3 for one in some]))
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMREC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ask(contents, checksum=ONE):
    """Vectors by a model that gives lengths, and which contents it was asked for."""
    cache, asked = VectorCache(checksum), []

    def encode(some):
        asked.extend(some)
        return np.array([[len(content), 0.1] for content in some])

    return cache.vectors(contents, encode), asked


def test_only_what_is_new_is_encoded(directory):
    vectors, asked = ask([b"a", b"bb", b"a"])
    assert sorted(asked) == [b"a", b"bb"]
    assert vectors.dtype == np.float32 and vectors[:, 0].tolist() == [1, 2, 1]
    again, asked = ask([b"ccc", b"bb"])
    assert asked == [b"ccc"] and again[:, 0].tolist() == [3, 2]
    np.testing.assert_array_equal(again[0, 1:], vectors[0, 1:])
    assert ask([b"ccc", b"a", b"bb"])[1] == []
    assert ask([])[0].shape[0] == 0
    assert len(list(directory.iterdir())) == 1


def test_another_model_has_vectors_of_its_own():
    ask([b"a"])
    assert ask([b"a"], OTHER)[1] == [b"a"]


@pytest.mark.slow
def test_processes_write_at_the_same_time(repository, directory):
    words = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*words, str(number)], cwd=repository) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    asked = ask([b"%d" % number for number in range(200)])[1]
    assert asked == []


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_written_anew(directory, damage, caplog):
    ask([b"a", b"bb"])
    file = next(directory.iterdir())
    file.write_bytes(file.read_bytes()[:4096] if damage is None else damage)
    assert ask([b"a"])[1] == [b"a"]
    assert ("damaged" in caplog.text) == (damage != b"")
    assert ask([b"a"])[1] == []


def test_without_a_directory_everything_is_encoded(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIMREC_CACHE", str(tmp_path / "file" / "cache"))
    assert ask([b"a"])[1] == [b"a"]
    assert ask([b"a"])[1] == [b"a"]
    assert "are not kept" in caplog.text


def test_a_damaged_file_that_cannot_be_deleted_is_passed_over(directory, monkeypatch, caplog):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    ask([b"a"])
    next(directory.iterdir()).write_bytes(b"nonsense")
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    assert ask([b"a", b"bb"])[1] == [b"a", b"bb"]
    assert "damaged" in caplog.text


def test_where_vectors_are_kept(tmp_path, monkeypatch):
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("SIMREC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "simrec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "simrec"
