"""The models that SimRec is compared with, behind one small interface.

Add one by writing a `Peer` and listing it here by name.
"""

from importlib import import_module

from peers.base import Peer

# Name -> module and class: a module is only imported, and its library only needed, when asked for.
PEERS = {
    "simrec": ("peers.simrec_peer", "SimRec"),
    "mean": ("peers.linear", "Mean"),
    "bias": ("peers.linear", "Bias"),
    "ridge-svd": ("peers.linear", "RidgeSvd"),
    "surprise": ("peers.svd", "Surprise"),
    "myfm": ("peers.fm", "MyFm"),
    "lightgbm": ("peers.boosting", "LightGbm"),
    "tfrs": ("peers.tfrs_towers", "TfrsTowers"),
    "simrec-ranking": ("peers.simrec_peer", "SimRecRanking"),
    "lightfm": ("peers.ranking", "LightFmWarp"),
    "popularity": ("peers.ranking", "Popularity"),
    "random": ("peers.ranking", "Random"),
    "oracle": ("peers.ranking", "Oracle"),
}
RATING = ("simrec", "mean", "bias", "ridge-svd", "surprise", "myfm", "lightgbm", "tfrs")
RANKING = ("simrec-ranking", "lightfm", "popularity", "random", "oracle")


def peer_class(name: str) -> type[Peer]:
    """Give the class of a peer, by name."""
    module, attribute = PEERS[name]
    return getattr(import_module(module), attribute)


__all__ = ["PEERS", "RANKING", "RATING", "Peer", "peer_class"]
