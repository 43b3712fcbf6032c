"""What an installation needs, and what it can do without TensorFlow."""

import re
import subprocess
import sys

CODE = """
import sys
for name in ("tensorflow", "tf_keras", "tensorflow_recommenders", "keras"):
    sys.modules[name] = None
from simrec import TwoTower, make_synthetic
data = make_synthetic(n_users=50, n_items=40, n_ratings=400)
tables = {"items": data.items, "users": data.users}
model = TwoTower(epochs=1, embedding_dim=2).fit(data.ratings, **tables)
model.save("model")
model = TwoTower.load("model")
model.explain(1, 2), model.fold_in({"user_id": 999, "item_id": 1, "rating": 3.0})
print(len(model.recommend(k=2)))
try:
    model.export("saved", "savedmodel")
except ImportError as error:
    print(error)
"""


def test_default_models_need_no_tensorflow(tmp_path):
    words = [sys.executable, "-c", CODE]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows, message = done.stdout.splitlines()
    assert int(rows) > 90 and message.endswith("pip install 'simrec[tensorflow]'")


def test_what_installs_what(repository):
    text = (repository / "setup.py").read_text()
    required = re.search(r"REQUIRES = \[(.*?)\]", text, re.S)[1]
    assert "tensorflow" not in required and "pyarrow" in required
    makefile = (repository / "Makefile").read_text()
    assert "'.[tensorflow]'" in makefile and '*EXTRAS["paper"]' in text
    docker = (repository / "Dockerfile").read_text()
    for name in re.findall(r"^COPY (.+) \S+$", docker, re.M):
        for path in name.split():
            assert (repository / path).exists(), path
