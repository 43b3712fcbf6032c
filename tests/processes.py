"""Python in a process of its own, for what depends on what was imported before."""

import subprocess
import sys

import pytest


def imported_by(code, *arguments, cwd=None):
    """Run code in a new process, which must succeed; give the packages it has imported."""
    code += "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.splitlines()[-1].split() if "." not in name}


def on_a_small_disk(code, directory):
    """Run code in a directory whose `small` is a disk of 1 MB; give its outcome, and what is left.

    Skipped with the reason where no file system of its own can be made.
    """
    (directory / "small").mkdir()
    command = f'mount -t tmpfs -o size=1m tmpfs small && {sys.executable} -c "{code}"'
    command += "; code=$?; ls -A small; exit $code"
    outcome = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], cwd=directory, capture_output=True, text=True
    )
    if "unshare" in outcome.stderr or "mount" in outcome.stderr:
        pytest.skip("no file system of its own can be made here")
    return outcome
