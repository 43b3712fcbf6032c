"""The service answers as the library does, keeps what it was told, and stands what it is sent."""

import asyncio
import base64
import copy
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import TwoTower
from simrec.data.features.content import ImageColumn
from simrec.errors import InputError
from simrec.scoring.threads import processors

pytest.importorskip("fastapi", reason="the extra simrec[serve] is not installed")
from fastapi.testclient import TestClient

from simrec.serve.answers import Answers
from simrec.serve.app import create_app
from simrec.serve.log import Log
from simrec.serve.requests import Recommend
from simrec.serve.service import Settings


def client_of(shop, tmp_path, **settings):
    app = create_app(Settings(str(shop.path), state=str(tmp_path / "state"), poll=0, **settings))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(shop, tmp_path_factory):
    return client_of(shop, tmp_path_factory.mktemp("service"), studio=True)


def listed(answer):
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    return [one["item_id"] for one in items], [one["score"] for one in items]


def same(answer, expected):
    ids, scores = listed(answer)
    assert ids == expected["item_id"].tolist()
    np.testing.assert_allclose(scores, expected["score"], atol=1e-6)


class TestAnswers:
    def test_known_users(self, client, shop):
        for body, options in (
            ({}, {}),
            ({"k": 3, "rank_by": "rating"}, {"k": 3, "rank_by": "rating"}),
            ({"where": {"year": {">=": 1980}}}, {"where": {"year": {">=": 1980}}}),
            ({"at_most": {"studio": 1}}, {"at_most": {"studio": 1}}),
            ({"diversity": 0.4, "k": 5}, {"diversity": 0.4, "k": 5}),
            ({"explore": 1.0}, {"explore": 1.0}),
            ({"explore": 1.0, "sample": 3}, {"explore": 1.0, "sample": 3}),
            ({"exclude_rated": False, "items": [1, 2, 17]}, {"exclude": None, "items": [1, 2, 17]}),
        ):
            answer = client.post("/recommend", json={"user_id": 7, **body})
            expected = shop.model.recommend(7, **options)
            same(answer, expected)
            found = answer.json()
            assert found["model_id"] == shop.model.model_id_
            assert len(found["list_id"]) == 32
            ids = expected["item_id"].tolist()
            told = [one["predicted"] for one in found["items"]]
            np.testing.assert_allclose(told, shop.model.predict([7] * len(ids), ids), atol=1e-6)
            if "sample" in body:
                told = [one["propensity"] for one in found["items"]]
                np.testing.assert_allclose(told, expected["propensity"], atol=1e-6)
        titles = shop.model.titles(ids)
        assert [one["title"] for one in found["items"]] == [titles[i] for i in ids]

    def test_guests(self, client, shop):
        ratings = [{"item_id": 17, "rating": 5}, {"item_id": 24, "rating": 0.5}]
        row = {"age": 30, "gender": "F"}
        table = pd.DataFrame({"user_id": 9001, "item_id": [17, 24], "rating": [5.0, 0.5]})
        features = {"user_id": 9001, **row}
        for body, guest in (
            ({"ratings": ratings}, shop.model.guests(table)),
            ({"ratings": ratings, "features": row}, shop.model.guests(table, users=features)),
            ({"features": row}, shop.model.guests(users=features)),
        ):
            answer = client.post("/recommend", json={**body, "reasons": True, "uncertainty": True})
            same(answer, guest.recommend(9001))
            one = answer.json()["items"][0]
            mean, std = guest.predict(9001, one["item_id"], return_std=True)
            np.testing.assert_allclose([one["predicted"], one["std"]], [mean[0], std[0]], atol=1e-5)
            if "ratings" in body:
                assert {r["item_id"] for r in one["reasons"]} <= {17}  # 24 was not liked
        both = client.post("/recommend", json={"user_id": 7, "ratings": ratings})
        same(both, shop.model.guests(table.assign(user_id=7)).recommend(7))
        # Nothing of it is left behind.
        same(client.post("/recommend", json={"user_id": 7}), shop.model.recommend(7))
        assert client.post("/recommend", json={"user_id": 9001}).status_code == 400
        assert client.post("/recommend", json={}).status_code == 200

    def test_other_answers(self, client, shop):
        model = shop.model
        found = client.post("/score", json={"user_id": 7, "items": [17, 24], "uncertainty": True})
        mean, std = model.predict([7, 7], [17, 24], return_std=True)
        told = np.array([(i["predicted"], i["std"]) for i in found.json()["items"]])
        np.testing.assert_allclose(told, np.column_stack([mean, std]), atol=1e-6)
        row = {"item_id": 7000, "year": 1999}
        alone = client.post("/score", json={"user_id": 7, "item_features": [row]})
        asked = {"user_id": 7, "items": [7000], "item_features": [row]}
        assert alone.json()["items"] == client.post("/score", json=asked).json()["items"]
        assert alone.json()["items"][0]["item_id"] == 7000
        found = client.post("/similar", json={"item_id": 17, "k": 5}).json()["items"]
        assert [i["item_id"] for i in found] == model.similar_items(17, k=5)["item_id"].tolist()
        found = client.post("/explain", json={"user_id": 7, "item_id": 17}).json()["contributions"]
        np.testing.assert_allclose(
            [c["contribution"] for c in found], model.explain(7, 17)["contribution"], atol=1e-6
        )
        found = client.post("/embed", json={"item_ids": [17], "user_ids": [7]}).json()
        np.testing.assert_allclose(
            found["items"][0]["vector"], model.embed_items([17])["vector"][0], atol=1e-6
        )
        known = {"items": [1, 2, 17, 24], "popularity": False}
        found = client.post("/ask", json={"k": 2, **known}).json()["items"]
        assert [i["item_id"] for i in found] == model.ask(k=2, **known)["item_id"].tolist()
        found = client.post("/ask", json={"k": 4}).json()["items"]
        assert [i["item_id"] for i in found] == model.ask(k=4)["item_id"].tolist()
        new = {"genres": ["Drama"], "year": 1999}
        assert len(client.post("/similar", json={"features": new}).json()["items"]) == 10
        body = {"features": new, "k": 3, "groups": True, "histogram": True}
        found = client.post("/audience", json=body).json()
        expected = model.audience({"item_id": 999, **new}, k=3)
        assert [u["user_id"] for u in found["users"]] == expected["user_id"].tolist()
        assert found["reach"] == expected["reach"][0]
        assert sum(found["histogram"]["counts"]) == len(model.users_)
        assert found["groups"]
        found = client.post("/history", json={"user_id": 7}).json()
        assert found["n"] == model.rated_[model.users_.rows([7])].nnz

    def test_long_answers_are_as_many_at_once_as_there_are_cores(self, shop, tmp_path, monkeypatch):
        running, most = [], []

        def similar(self, request):
            running.append(1)
            most.append(len(running))
            time.sleep(0.02)
            running.pop()
            return {"items": []}

        monkeypatch.setattr(Answers, "similar", similar)
        with client_of(shop, tmp_path) as client, ThreadPoolExecutor(12) as pool:
            asked = pool.map(lambda i: client.post("/similar", json={"item_id": i}), range(12))
            assert [one.status_code for one in asked] == [200] * 12
        assert max(most) <= processors()

    def test_operations(self, client, shop):
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json()["models"] == {"a": shop.model.model_id_}
        card = client.get("/schema").json()["a"]
        assert card["items"] == 80
        assert {c["name"]: c["kind"] for c in card["columns"]["items"]}["genres"] == "list"
        text = client.get("/metrics").text
        assert 'simrec_requests_total{path="/healthz",status="200"}' in text
        assert "/recommend" in client.get("/openapi.json").json()["paths"]


def test_nothing_is_said_of_likes_that_are_not_kept(shop):
    asked = Recommend(user_id=7, reasons=True)
    assert any(one["reasons"] for one in Answers(shop.model).recommend(asked)["items"])
    model = copy.copy(shop.model)
    model.liked_ = None
    assert not any(one["reasons"] for one in Answers(model).recommend(asked)["items"])
    assert not model.explain(7, 17)["value"].str.contains("liked").any()


class Lengths:
    """Stands for a model of images: its vectors are the numbers of bytes."""

    checksum = "0" * 64

    def encode(self, contents):
        return np.array([[len(one), 1] for one in contents], np.float32)


class TestWhatComesIn:
    def test_images_are_base64(self, shop, tmp_path, monkeypatch):
        monkeypatch.setenv("SIMREC_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(ImageColumn, "load", lambda model: Lengths())
        images = pa.array([bytes(i % 40) for i in range(shop.data.items.num_rows)])
        items = shop.data.items.append_column("picture", images)
        model = TwoTower(epochs=2, lists=False, item_columns={"picture": "image:any"})
        model.fit(shop.split.train, items=items).save(tmp_path / "model")
        client = client_of(SimpleNamespace(path=tmp_path / "model"), tmp_path)
        new = {"item_id": 5000, "year": 2020, "genres": ["Drama"]}
        row = {**new, "picture": base64.b64encode(bytes(33)).decode()}
        assert client.post("/items", json={"rows": [row]}).json()["added"] == 1
        (found,) = client.post("/embed", json={"item_ids": [5000]}).json()["items"]
        expected = model.embed_items(pa.Table.from_pylist([{**new, "picture": bytes(33)}]))
        np.testing.assert_allclose(found["vector"], expected["vector"][0], atol=1e-6)
        for path, body in (
            ("/recommend", {"user_id": 7, "items": [5000, 17]}),
            ("/score", {"user_id": 7, "items": [5000]}),
            ("/similar", {"item_id": 5000}),
            ("/explain", {"user_id": 7, "item_id": 5000}),
        ):
            assert client.post(path, json=body).status_code == 200
        answer = client.post("/items", json={"rows": [{**new, "picture": "/etc/hostname"}]})
        assert answer.status_code == 400 and "picture: expected an image in base64" in answer.text

    def test_new_items_are_rankable_at_once_and_feedback_is_kept(self, shop, tmp_path):
        client = client_of(shop, tmp_path)
        new = {"item_id": 5000, "title": "Brand new", "year": 2020, "genres": ["Drama"]}
        assert client.post("/items", json={"rows": [new]}).json()["added"] == 1
        answer = client.post("/recommend", json={"user_id": 7, "items": [5000, 17, 24]})
        table = shop.model.recommend(7, items=[new, {"item_id": 17}, {"item_id": 24}])
        assert sorted(listed(answer)[0]) == sorted(table["item_id"])
        told = {i["item_id"]: i["score"] for i in answer.json()["items"]}
        expected = table.set_index("item_id")["score"][5000]
        assert abs(told[5000] - expected) < 1e-6
        assert "Brand new" in answer.text
        asked = {"item_ids": [24, 5000, 17], "items": [{**new, "item_id": 5001}]}
        found = client.post("/embed", json=asked).json()["items"]
        assert [one["item_id"] for one in found] == [24, 5000, 17, 5001]
        assert found[1]["vector"] == found[3]["vector"] != found[0]["vector"]
        only = client.post("/recommend", json={"user_id": 7, "where": {"year": 2020}})
        assert 5000 in listed(only)[0]
        client.post("/users", json={"rows": [{"user_id": 9100, "age": 20, "gender": "M"}]})
        first = listed(client.post("/recommend", json={"user_id": 9100}))[0]
        rated = [{"user_id": 9100, "item_id": i, "rating": 5.0} for i in first[:2]]
        rated.append({"user_id": 7, "item_id": 17, "event": "click", "list_id": "x"})
        assert client.post("/feedback", json={"events": rated}).json()["logged"] == 3
        second = listed(client.post("/recommend", json={"user_id": 9100}))[0]
        assert not set(second) & set(first[:2])
        # Another process that starts later, or was there before, knows all of it.
        other = client_of(shop, tmp_path)
        assert listed(other.post("/recommend", json={"user_id": 9100}))[0] == second
        Log(tmp_path / "state").seal()
        third = client_of(shop, tmp_path)
        for one in (other, third):
            assert listed(one.post("/recommend", json={"user_id": 9100}))[0] == second
        # Segments are what `update` reads; a model that has learned them is not told twice.
        model = TwoTower.load(shop.path)
        state = tmp_path / "state"
        model.update(state / "ratings", items=state / "items", users=state / "users")
        model.save(tmp_path / "later")
        service = create_app(Settings(str(tmp_path / "later"), state=str(state), poll=0))
        later = TestClient(service)
        same(later.post("/recommend", json={"user_id": 9100}), model.recommend(9100))
        assert service.app.state.service.engines["a"].since.ratings == {}
        assert pq.read_table(state / "events")["event"].to_pylist() == ["click"]

    def test_a_kill_loses_nothing_that_was_acknowledged(self, tmp_path):
        log = Log(tmp_path)
        log.append("ratings", [{"user_id": 1, "item_id": 2, "rating": 3.0}])
        with open(log.path, "ab") as file:
            file.write(b'[2,"ratings",{"user_id"')  # cut short
        again = Log(tmp_path)
        assert again.append("ratings", [{"user_id": 1, "item_id": 3, "rating": 4.0}]) == 2
        assert [row["item_id"] for _, row in again.new()] == [2, 3]
        assert [row["item_id"] for _, row in log.new()] == [2, 3]
        again.seal()
        log.append("items", [{"item_id": 9}])
        assert [row["item_id"] for _, row in Log(tmp_path).new()] == [2, 3, 9]
        assert [kind for kind, _ in log.new()] == ["items"]

    def test_a_full_disk_is_told(self, shop, tmp_path, monkeypatch):
        client = client_of(shop, tmp_path)

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("simrec.serve.log.os.fsync", full)
        body = {"events": [{"user_id": 7, "item_id": 17, "rating": 4}]}
        answer = client.post("/feedback", json=body)
        assert answer.status_code == 507, answer.text
        assert "disk is full" in answer.json()["detail"]
        monkeypatch.undo()
        assert client.post("/feedback", json=body).status_code == 200
        assert len(Log(tmp_path / "state").new()) == 1

    def test_lists_may_come_as_the_strings_that_they_were_in_training(self, tmp_path):
        """From then on they are lists to filters, and beside those that others post."""
        rng = np.random.default_rng(0)
        pairs = pa.table({"user_id": rng.integers(40, size=600), "item_id": np.arange(600) % 30})
        tags = ["War|Noir", "Comedy|Noir", "War|Drama"] * 10
        path = tmp_path / "model"
        model = TwoTower(embedding_dim=4, epochs=2)
        model.fit(pairs, items=pa.table({"item_id": np.arange(30), "tags": tags})).save(path)
        client = client_of(SimpleNamespace(path=path), tmp_path)
        for item, given in ((9001, "War|Comedy"), (9002, ["War", "Comedy"]), (9003.0, None)):
            answer = client.post("/items", json={"rows": [{"item_id": item, "tags": given}]})
            assert answer.status_code == 200, answer.text
        comedies = {"where": {"tags": {"contains": "Comedy"}}, "k": 40}
        found, scores = listed(client.post("/recommend", json={"features": {}, **comedies}))
        assert {9001, 9002} < set(found) and 9003 not in found
        assert scores[found.index(9001)] == scores[found.index(9002)]
        refused = client.post("/recommend", json={"features": {"age": 3}})
        assert "trained without features of users" in refused.json()["detail"]
        assert (
            client.post("/score", json={"user_id": 1.0, "items": [9001, 9002]}).status_code == 200
        )

    def test_a_new_item_with_few_columns_is_listed_alone(self, shop, tmp_path):
        """A row that is fine in its batch is so alone too."""
        features = shop.data.items.drop_columns(["item_id"]).slice(0, 1).to_pylist()[0]
        client = client_of(shop, tmp_path)
        rows = [{"item_id": 900, **features}, {"item_id": 901, "title": "x"}, {"item_id": 902}]
        assert client.post("/items", json={"rows": rows}).json()["added"] == 3
        for item in (901, 902):
            answer = client.post("/recommend", json={"user_id": 7, "items": [item]})
            assert listed(answer)[0] == [item]
            assert client.post("/embed", json={"item_ids": [item]}).status_code == 200


class TestSwap:
    def test_a_new_model_takes_over_and_a_bad_one_does_not(self, shop, tmp_path):
        path = tmp_path / "model"
        shutil.copytree(shop.path, path)
        settings = Settings(str(path), state=str(tmp_path / "state"), poll=0)
        app = create_app(settings)
        client, service = TestClient(app), app.app.state.service
        client.post("/items", json={"rows": [{"item_id": 5000, "year": 2020}]})
        rated = set(
            shop.model.items_.take(
                shop.model.rated_[shop.model.users_.rows([7])].indices
            ).to_pylist()
        )
        item = next(i for i in shop.split.train.items.ids.to_pylist() if i not in rated)
        body = {"events": [{"user_id": 7, "item_id": item, "rating": 0.5}]}
        client.post("/feedback", json=body)
        before = listed(client.post("/recommend", json={"user_id": 7, "k": 30}))
        file = path / "rating_items_vectors.npy"
        kept = file.read_bytes()
        file.unlink()  # other processes have the old one mapped
        file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        (path / "manifest.json").touch()
        service.check_models()
        assert service.counts["model_refused_total"] == 1
        assert listed(client.post("/recommend", json={"user_id": 7, "k": 30})) == before
        model = TwoTower.load(shop.path)
        extra = pd.DataFrame({"user_id": 8, "item_id": [17, 30], "rating": [1.0, 5.0]})
        shutil.rmtree(path)
        model.update(extra).save(path)
        service.check_models()
        assert service.counts["model_swaps_total"] == 1
        same(client.post("/recommend", json={"user_id": 8}), model.recommend(8))
        after = listed(client.post("/recommend", json={"user_id": 7, "k": 30}))
        guest = model.guests(pd.DataFrame({"user_id": 7, "item_id": [item], "rating": [0.5]}))
        expected = guest.recommend(7, k=30)["item_id"].tolist()
        assert [i for i in after[0] if i != 5000] == [i for i in expected if i in after[0]]
        assert client.post("/score", json={"user_id": 7, "items": [5000]}).status_code == 200


class TestSafety:
    def test_keys_rates_sizes_and_names(self, shop, tmp_path):
        key = "k" * 20
        client = client_of(shop, tmp_path, keys=(key,), body=2000)
        assert client.get("/healthz").status_code == 200
        answer = client.get("/schema")
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        for header in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}):
            assert client.get("/schema", headers=header).status_code == 200
        assert client.get("/schema", headers={"X-API-Key": key + "x"}).status_code == 401
        header = {"X-API-Key": key}
        large = {"user_id": 7, "exclude": list(range(2000))}
        assert client.post("/recommend", json=large, headers=header).status_code == 413

        def chunks():
            yield b'{"user_id": 7, "exclude": ['
            for _ in range(3000):
                yield b"1,"
            yield b"1]}"

        answer = client.post("/recommend", content=chunks(), headers=header)
        assert answer.status_code == 413
        slow = client_of(shop, tmp_path, rate=0.01)
        assert [slow.get("/schema").status_code for _ in range(3)] == [200, 429, 429]
        assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 421

    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("/recommend", {"user_id": 7, "k": 10**9}, 422),
            ("/recommend", {"user_id": 7, "surprise": 1}, 422),
            ("/recommend", {"user_id": "/etc/passwd"}, 400),
            ("/recommend", {"user_id": 7, "where": {"__class__": 1}}, 400),
            ("/recommend", {"user_id": 7, "where": {"year": {"eval": "1"}}}, 400),
            ("/recommend", {"ratings": [{"item_id": 17, "rating": 99}]}, 400),
            ("/recommend", {"ratings": [{"item_id": 10**6, "rating": 3}]}, 400),
            ("/recommend", {"ratings": [{"item_id": 17}]}, 400),
            ("/recommend", {"features": {"age": {"a": 1}}}, 400),
            ("/recommend", {"features": {"age": ["x", 1]}}, 400),
            ("/similar", {"item_id": "items.parquet"}, 400),
            ("/similar", {"features": {"genres": "\ud800"}}, 422),
            ("/score", {"user_id": 7, "items": ["x.csv"]}, 400),
            ("/score", {"user_id": 7}, 400),
            ("/score", {"user_id": 7, "item_features": [{"title": "no id"}]}, 400),
            ("/items", {"rows": [{"title": "no id"}]}, 400),
            ("/items", {"rows": [{"item_id": 6000, "year": "soon"}]}, 400),
            ("/feedback", {"events": [{"user_id": 7, "item_id": 17, "rating": 77}]}, 400),
            ("/recommend", {"model": "b", "user_id": 7}, 400),
        ],
    )
    def test_bad_requests_are_told_why(self, client, path, body, status):
        answer = client.post(
            path, content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]
        assert "Traceback" not in answer.text

    @pytest.mark.parametrize(
        ("path", "body", "detail"),
        [
            ("/recommend", [1], "the request: Input should be an object"),
            ("/recommend", {"user_id": [1]}, "user_id: Input should be a whole number or a string"),
            ("/recommend", {"user_id": True}, "user_id: Input should be a whole number or a "),
            ("/recommend", {"sample": "x"}, "sample: Input should be true, false or a seed"),
            ("/recommend", {"ratings": {}}, "ratings: Input should be a list"),
            ("/recommend", {"user_id": 9001}, "user_id: nothing is known of 9001. Give features"),
            (
                "/recommend",
                {"ratings": [{"item_id": 17, "rating": 99}]},
                "ratings.0.rating: 99 is not within",
            ),
            (
                "/recommend",
                {"features": {"age": ["x"]}},
                "users: column 'age' holds values of type",
            ),
            ("/recommend", {"where": {"year": {">": None}}}, "where: 'year' holds numbers, and ca"),
            ("/explain", {"user_id": 7, "item_id": 9001}, "item_id: no item 9001; give its feat"),
            ("/similar", {"item_id": 9001}, "item_id: no item 9001; give its features"),
            ("/audience", {"item_id": 9001}, "item_id: no item 9001; give its features"),
            ("/ask", {"items": [9001]}, "item_id: no item 9001; give its features"),
            ("/score", {"items": [9001]}, "item_id: no item 9001; give its features"),
            (
                "/score",
                {"item_features": [{"item_id": [1]}]},
                "item_id: expected a whole number or a string, got [1].",
            ),
            (
                "/score",
                {"item_features": [{"item_id": 9, "genres": ["War", 1]}]},
                "items, genres: expected values of one type, and numbers of 64 bits at most",
            ),
            ("/items", {"rows": [{"item_id": None}]}, "item_id: expected a whole number or a str"),
            (
                "/items",
                {"rows": [{"item_id": 9001, "genres": [["War"]]}]},
                'genres: expected a value or a list of values, got [["War"]].',
            ),
        ],
    )
    def test_errors_name_the_field_in_the_words_of_json(self, client, path, body, detail):
        answer = client.post(path, json=body)
        assert answer.json()["detail"].startswith(detail), answer.text
        for word in (
            "dict",
            "NoneType",
            "None",
            "Arrow",
            "int64",
            "users=",
            "items=",
            "constrained",
        ):
            assert word not in answer.text

    def test_a_list_that_is_null_is_none(self, client):
        rows = [{"item_id": 9301, "genres": None}, {"item_id": 9302, "genres": ["War", None]}]
        assert client.post("/items", json={"rows": rows}).status_code == 200
        body = {"user_id": 7, "items": [9301, 9302], "where": {"genres": None}}
        assert listed(client.post("/recommend", json=body))[0] == [9301]

    def test_a_deep_request_is_no_crash(self, client):
        deep = '{"where":' + '{"not":' * 5000 + "{}" + "}" * 5000 + "}"
        answer = client.post(
            "/recommend", content=deep, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422)

    def test_a_request_that_is_cut_off_is_no_error_of_the_service(self, client):
        sent = []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost"), (b"content-length", b"9")]}
        asyncio.run(client.app(scope, receive, send))
        assert sent[0]["status"] == 400

    def test_only_json_is_read(self, client):
        for kind in ("text/plain", "", "application/jsonp"):
            headers = {"Content-Type": kind}
            answer = client.post("/recommend", content=b'{"user_id": 7}', headers=headers)
            assert answer.status_code == 415
        headers = {"Content-Type": "application/json; charset=utf-8"}
        answer = client.post("/recommend", content=b'{"user_id": 7}', headers=headers)
        assert answer.status_code == 200

    def test_others_need_keys(self, shop):
        from simrec.jobs.serve import ServiceOptions, serve

        with pytest.raises(InputError, match="give keys"):
            serve(shop.path, ServiceOptions(host="0.0.0.0"))
