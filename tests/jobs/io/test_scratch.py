import numpy as np
from processes import on_a_small_disk

from simrec.jobs.io.parts import Scratch


def test_small_arrays_are_in_memory_and_large_ones_in_files(tmp_path):
    scratch = Scratch(tmp_path, 100)
    assert not isinstance(scratch.empty("small", (5,), np.float32), np.memmap)
    large = scratch.empty("large", (1000, 3), np.float32)
    assert isinstance(large, np.memmap) and large.shape == (1000, 3)
    # All of its room is taken, so that writing to it cannot run out of it.
    assert (tmp_path / "large.npy").stat().st_blocks * 512 >= large.nbytes


def test_a_full_disk_is_an_error_not_a_signal(tmp_path):
    code = (
        "import numpy as np; from pathlib import Path; from simrec.jobs.io.parts import Scratch\n"
        "Scratch(Path('small'), 100).empty('a', (10**6,), np.float32)[:] = 1"
    )
    outcome = on_a_small_disk(code, tmp_path)
    assert outcome.returncode == 1 and "the disk is full" in outcome.stderr
