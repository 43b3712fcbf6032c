"""Whatever a table holds, the outcome is a finite answer or an InputError.

A few hundred tables by default; more with SIMREC_RANDOM_TABLES=10, which multiplies them.
"""

import os
import warnings
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_tables import features, ids

from simrec import FeatureEncoder, InputError, Ratings, TwoTower
from simrec.data.tables import read_table

TIMES = int(os.environ.get("SIMREC_RANDOM_TABLES", "1"))
N_USERS, N_ITEMS, N_NEW = 12, 10, 3


def in_some_form(rng, table, path):
    """Give a table as it is, as a frame or as a file, where these can hold it."""
    form = rng.choice(["arrow", "arrow", "pandas", "parquet"])
    try:
        if form == "pandas":
            return table.to_pandas()
        if form == "parquet":
            pq.write_table(table, path)
            return path
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        pass
    return table


@pytest.mark.parametrize("block", range(8 * TIMES))
def test_encoding_any_table(block, tmp_path):
    outcomes = Counter()
    for seed in range(40 * block, 40 * (block + 1)):
        rng = np.random.default_rng(seed)
        table = features(rng, int(rng.integers(1, 30)))
        source = in_some_form(rng, table, tmp_path / f"x[{seed}].parquet")
        try:
            encoder = FeatureEncoder(min_count=1, knots=int(rng.choice([0, 5]))).fit(source)
            X = encoder.transform(source)
            again = FeatureEncoder.from_dict(encoder.to_dict()).transform(source)
            assert encoder.transform(read_table(source, allow_empty=True).slice(0, 0)).shape[0] == 0
            words = encoder.words(X[0])
        except InputError:
            outcomes["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {table.schema}") from error
        assert np.isfinite(X.data).all(), f"seed {seed}: {table.schema}"
        assert (again != X).nnz == 0 and X.shape == (len(table), encoder.n_features_)
        assert list(words) == list(encoder.columns_)
        outcomes["encoded"] += 1
    assert min(outcomes["encoded"], outcomes["refused"]) > 0


def some_slow(block):
    """Leave all but the first two blocks of fits to `make test-all`."""
    return pytest.param(block, marks=pytest.mark.slow) if block > 1 else block


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", [*map(some_slow, range(4 * TIMES))])
def test_a_model_of_any_tables(block, tmp_path):
    outcomes = Counter()
    for seed in range(10 * block, 10 * (block + 1)):
        rng = np.random.default_rng(seed)
        all_users, all_items = ids(rng, N_USERS + N_NEW), ids(rng, N_ITEMS + N_NEW)
        users, items = (
            pa.table([known, *table.columns], names=[name, *table.column_names])
            for name, known in (("user_id", all_users), ("item_id", all_items))
            for table in [features(rng, len(known))]
        )
        cells = rng.permutation(N_USERS * N_ITEMS)[:60]
        pairs = {
            "user_id": taken(all_users, cells // N_ITEMS),
            "item_id": taken(all_items, cells % N_ITEMS),
        }
        ratings = pa.table({**pairs, "rating": rng.choice([1.0, 2.0, 5.0], len(cells))})
        try:
            found = answers(rng, ratings, users, items, tmp_path, seed)
        except InputError as error:
            outcomes[str(error)[:30]] += 1
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {users.schema} {items.schema}") from error
        assert np.isfinite(found).all(), f"seed {seed}: {users.schema} {items.schema}"
        outcomes["answered"] += 1
    assert outcomes["answered"] > 0


def taken(values, rows):
    """Take some values, also of types for which Arrow has no `take`."""
    plain = read_table(pa.table({"ids": values})).column("ids")
    return plain.take(pa.array(rows))


def answers(rng, ratings, users, items, path, seed):
    """Fit on the known users and items, and answer for all, new ones and none."""
    known_users, new_users = users.slice(0, N_USERS), users.slice(N_USERS)
    known_items, new_items = items.slice(0, N_ITEMS), items.slice(N_ITEMS)
    model = TwoTower(embedding_dim=2, epochs=2, folds=2, min_count=1, random_state=0)
    source = in_some_form(rng, ratings, path / f"{seed}.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(Ratings.from_table(source), items=known_items, users=known_users)
        pairs = pa.table(
            {
                "user_id": read_table(new_users).column("user_id"),
                "item_id": read_table(new_items).column("item_id"),
            }
        )
        scores = [
            np.asarray(model.predict(ratings.select(["user_id", "item_id"]))),
            np.asarray(model.predict(pairs, items=new_items, users=new_users, unknown="prior")),
            np.asarray(
                model.predict(pairs, items=new_items.slice(0, 0), users=users, unknown="prior")
            ),
        ]
        empty = model.predict(pairs.slice(0, 0), items=new_items.slice(0, 0))
        assert len(empty) == 0
        listed = model.recommend(known_users, k=3, output="arrow")
        one = pairs["user_id"][0].as_py(), pairs["item_id"][0].as_py()
        why = model.explain(*one, items=items, users=users, unknown="prior", output="arrow")
    return np.concatenate([*scores, listed["score"], why["contribution"]])
