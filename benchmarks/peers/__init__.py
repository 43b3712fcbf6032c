"""The models that SimRec is compared with, behind one small interface.

Add one by writing a `Peer` and listing it here by name.
"""

from importlib import import_module
from typing import Any

from peers.base import Peer

# Name -> module, class and, where one class has several peers, what is set otherwise. A module is
# only imported, and its library only needed, when asked for.
PEERS: dict[str, tuple[Any, ...]] = {
    "simrec": ("peers.simrec_peer", "SimRec"),
    "simrec-simec": ("peers.simrec_peer", "SimRecSimEc"),
    "mean": ("peers.linear", "Mean"),
    "bias": ("peers.linear", "Bias"),
    "ridge-svd": ("peers.linear", "RidgeSvd"),
    "surprise": ("peers.svd", "Surprise"),
    "myfm": ("peers.fm", "MyFm"),
    "lightgbm": ("peers.boosting", "LightGbm"),
    "tfrs": ("peers.tfrs_towers", "TfrsTowers"),
    "lightfm": ("peers.ranking", "LightFmWarp"),
    "popularity": ("peers.ranking", "Popularity"),
    "popularity-1": ("peers.ranking", "Popularity", {"l2": 1}),
    "popularity-100": ("peers.ranking", "Popularity", {"l2": 100}),
    "content": ("peers.histories", "ContentProfile"),
    "content-popularity": ("peers.histories", "ContentPopularity"),
    "content-popularity-2": ("peers.histories", "ContentPopularity", {"share": 2}),
    "content-network": ("peers.network", "ContentNetwork"),
    "ease-30": ("peers.histories", "Ease", {"l2": 30}),
    "ease-100": ("peers.histories", "Ease", {"l2": 100}),
    "ease-500": ("peers.histories", "Ease", {"l2": 500}),
    "ease-2000": ("peers.histories", "Ease", {"l2": 2000}),
    "ease-neighbours": ("peers.neighbours", "EaseNeighbours", {"l2": 100}),
    "ease-neighbours-500": ("peers.neighbours", "EaseNeighbours", {"l2": 500}),
    "marec": ("peers.marec", "Marec"),
    "marec-500": ("peers.marec", "Marec", {"l2": 500}),
    "als-128-30": ("peers.histories", "ImplicitAls", {"n_factors": 128, "l2": 30, "alpha": 3}),
    "als-128-100": ("peers.histories", "ImplicitAls", {"n_factors": 128, "l2": 100, "alpha": 3}),
    "als-256-10": ("peers.histories", "ImplicitAls", {"n_factors": 256, "l2": 10, "alpha": 40}),
}
RATING = (
    "simrec",
    "simrec-simec",
    "mean",
    "bias",
    "ridge-svd",
    "surprise",
    "myfm",
    "lightgbm",
    "tfrs",
)
POPULARITY = ("popularity", "popularity-1", "popularity-100")
CONTENT = ("content-popularity", "content-popularity-2")
EASE = ("ease-30", "ease-100", "ease-500", "ease-2000")
NEIGHBOURS = ("ease-neighbours", "ease-neighbours-500")
MAREC = ("marec", "marec-500")
ALS = ("als-128-30", "als-128-100", "als-256-10")
LISTS = (
    "simrec",
    *POPULARITY,
    "content",
    *CONTENT,
    *EASE,
    *MAREC,
    "content-network",
    *ALS,
    "lightfm",
)
# One row of a table for all settings of a model.
FAMILIES = {
    **dict.fromkeys(POPULARITY, "popularity, also from features"),
    **dict.fromkeys(CONTENT, "content profile + popularity"),
    **dict.fromkeys(EASE, "EASE"),
    **dict.fromkeys(NEIGHBOURS, "EASE of content neighbours"),
    **dict.fromkeys(MAREC, "MARec, our variant"),
    **dict.fromkeys(ALS, "implicit ALS"),
}


def peer_class(name: str) -> type[Peer]:
    """Give the class of a peer, by name."""
    module, attribute, *settings = PEERS[name]
    kind = getattr(import_module(module), attribute)
    return type(kind.__name__, (kind,), {"name": name, **settings[0]}) if settings else kind


__all__ = ["FAMILIES", "LISTS", "PEERS", "RATING", "Peer", "peer_class"]
