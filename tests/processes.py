"""Python in a process of its own, for what depends on what was imported before."""

import subprocess
import sys


def imported_by(code, *arguments, cwd=None):
    """Run code in a new process, which must succeed; give the packages it has imported."""
    code += "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.splitlines()[-1].split() if "." not in name}
