"""Export a model to other systems: TensorFlow, Faiss, vector databases."""

from typing import Any, Literal

from simrec.jobs.io.inputs import ModelReference, RankBy
from simrec.jobs.io.outputs import claim
from simrec.jobs.options import Path


def export(
    model: Path,
    out: Path,
    *,
    format: Literal["savedmodel", "tower", "parquet", "faiss"],
    side: Literal["item", "user"] | None = None,
    items: Path | None = None,
    users: Path | None = None,
    rank_by: RankBy = "both",
    index: Literal["auto", "flat", "hnsw", "ivf"] = "auto",
    unknown: Literal["error", "prior"] = "error",
) -> dict[str, Any]:
    """Write a model for another system.

    Parameters
    ----------
    out : path
        The directory to write; an earlier export there is replaced.
    format : str
        savedmodel (user tower and item index for TensorFlow), tower (features to vectors),
        parquet (vectors) or faiss (index over the items).
    side : str, optional
        The tower to export, item or user; of parquet both by default.
    items : path, optional
        Items to export instead of all known ones: item_id, with features of those not known.
    users : path, optional
        Users to export instead of all known ones, likewise; for parquet.
    index : str
        Kind of the Faiss index: flat, hnsw, ivf, or auto, which chooses by the number of items.
    unknown : str
        What the SavedModel does with an unknown user without features: error, or prior, the
        answer for an average user.

    Returns
    -------
    dict
        What was written; for faiss with its recall@10 against exact search.
    """
    from simrec.model.export.formats import check_replaceable

    # Found out now rather than after loading.
    check_replaceable(out)
    reference = ModelReference.of(model)
    given: dict[str, Any] = {"side": side, "items": items, "users": users, "rank_by": rank_by}
    with claim(out, model=model, items=items, users=users):
        return reference.load().export(out, format, **given, index=index, unknown=unknown)
