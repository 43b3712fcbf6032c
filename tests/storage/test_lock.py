import os
import subprocess
import sys
import threading
import time

import pytest

from simrec import InputError
from simrec.storage.files import lock


def test_a_stale_lock_has_one_heir_in_300_rounds(tmp_path):
    path = tmp_path / "out.lock"
    inside, most, refused = [0], [0], [0]
    start = threading.Barrier(4)

    def take():
        for _ in range(300):
            start.wait()
            try:
                with lock(path):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(0.0005)
                    inside[0] -= 1
            except InputError:
                refused[0] += 1
            start.wait()

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        path.write_text(str(1 << 22))
        start.wait()
        start.wait()
        assert not path.exists()
    for thread in threads:
        thread.join()
    assert most == [1] and refused[0] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from simrec.storage.files import lock\n"
        "with lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    path = tmp_path / "out.lock"
    words = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"another job .process {process.pid}"), lock(path):
            pass
        assert path.exists()
        process.kill()
    with lock(path):
        assert path.read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symbolic_link_is_no_lock(tmp_path, dangling):
    (tmp_path / "out.lock").symlink_to(tmp_path / ("absent" if dangling else "."))
    with (
        pytest.raises(InputError, match="out.lock: cannot be a lock file"),
        lock(tmp_path / "out.lock"),
    ):
        pass
    assert (tmp_path / "out.lock").is_symlink()


def test_a_lock_that_was_deleted_and_made_again_is_not_removed(tmp_path):
    path = tmp_path / "out.lock"
    with lock(path):
        path.unlink()
        path.write_text("of another")
    assert path.read_text() == "of another"


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: is not a directory"), lock(tmp_path / "file/lock"):
        pass
