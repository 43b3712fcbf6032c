"""Images: vectors of Keras models from files; digits as new items."""

import json

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower, cold_start_split
from simrec.data.features import FeatureEncoder
from simrec.errors import InputError
from simrec.simec.keras import keras, tf


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMREC_CACHE", str(tmp_path / "cache"))


def png(pixels):
    return tf.io.encode_png(np.asarray(pixels, np.uint8)).numpy()


def bars(n, rng, size=12):
    """Pictures of a bright bar, upright or lying, in noise; and which is which."""
    upright = rng.random(n) < 0.5
    pixels = rng.integers(0, 30, (n, size, size, 1))
    for picture, stands in zip(pixels, upright, strict=True):
        at = rng.integers(3, size - 3)
        (picture[:, at] if stands else picture[at])[:] = 230
    return pixels, upright


def edges(size=12):
    """A model that sees edges: the mean response to upright and to lying ones."""
    image = keras.Input((size, size, 1))
    scaled = keras.layers.Rescaling(1 / 255)(image)
    kernel = np.stack([[[-1, 0, 1]] * 3, np.transpose([[-1, 0, 1]] * 3)], -1)[:, :, None]
    convolution = keras.layers.Conv2D(2, 3, use_bias=False, activation="relu")
    pooled = keras.layers.GlobalAveragePooling2D()(convolution(scaled))
    model = keras.Model(image, pooled)
    convolution.set_weights([kernel.astype(np.float32)])
    return model


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "edges.keras"
    edges().save(path)
    return path


def test_bytes_and_paths_of_images(model_file, tmp_path):
    pixels, upright = bars(40, np.random.default_rng(0))
    images = [png(picture) for picture in pixels]
    kind = {"picture": f"image:{model_file}"}
    encoder = FeatureEncoder(kind)
    X = encoder.fit_transform(pa.table({"picture": [*images, None]})).toarray()
    assert encoder.feature_names_ == ["picture[0]", "picture[1]", "picture=missing"]
    assert X[-1].tolist() == [0, 0, 1]
    assert (np.abs(X[:-1, 0]) > np.abs(X[:-1, 1])).tolist() == upright.tolist()
    again = FeatureEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    files = []
    for place, image in enumerate(images):
        files.append(str(tmp_path / f"{place}.png"))
        (tmp_path / f"{place}.png").write_bytes(image)
    by_path = again.transform(pa.table({"picture": [*files, None]})).toarray()
    np.testing.assert_array_equal(by_path, X)
    assert again.describe()[0].read_as == f"image by {model_file}: vector of 2"
    assert again.words(again.transform(pa.table({"picture": [images[0]]}))) == {"picture": "image"}


@pytest.mark.slow
def test_a_model_saved_by_keras_3(tmp_path):
    newer = pytest.importorskip("keras", minversion="3")
    layers = [newer.Input((8, 8, 3)), newer.layers.Rescaling(1 / 255), newer.layers.Flatten()]
    newer.Sequential(layers).save(tmp_path / "newer.keras")
    image = np.arange(8 * 8 * 3).reshape(8, 8, 3)
    encoder = FeatureEncoder({"x": f"image:{tmp_path / 'newer.keras'}"}, components=192)
    X = encoder.fit_transform(pa.table({"x": [png(image), png(image[::-1])]})).toarray()
    np.testing.assert_allclose(X[0], image.ravel() / 255, atol=1e-3)


@pytest.mark.slow
def test_bad_images_and_models_are_named(model_file, tmp_path):
    good = png(bars(1, np.random.default_rng(0))[0][0])
    kind = {"x": f"image:{model_file}"}
    with pytest.raises(InputError, match="column 'x': 1 of 3 rows are no images .*row 1"):
        FeatureEncoder(kind).fit(pa.table({"x": [good, b"no image", None]}))
    with pytest.raises(InputError, match="column 'x': 1 of 1 rows name a file that cannot be read"):
        FeatureEncoder(kind).fit(pa.table({"x": [str(tmp_path / "none.png")]}))
    (tmp_path / "text.keras").write_text("no model")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).save(tmp_path / "flat.keras")
    layers = [keras.Input((4, 4, 1)), keras.layers.Lambda(lambda x: x)]
    keras.Sequential(layers).save(tmp_path / "code.keras")
    for name, message in (
        ("", "name its file"),
        (":none.keras", "there is no file none.keras"),
        (f":{tmp_path}/text.keras", "no model of Keras"),
        (f":{tmp_path}/flat.keras", "takes one input of"),
        (f":{tmp_path}/code.keras", "Lambda layer"),
        (f":NoNet:{model_file}", "no application 'NoNet'"),
        (f":MobileNetV2:{model_file}", "no weights of MobileNetV2"),
    ):
        with pytest.raises(InputError, match=f"'x' is encoded by the Keras model.*{message}"):
            FeatureEncoder({"x": f"image{name}"}).fit(pa.table({"x": [good]}))


@pytest.mark.slow
def test_an_application_of_keras_with_weights_from_a_file(tmp_path):
    made = keras.applications.MobileNetV2(weights=None, include_top=False, pooling="avg")
    made.save_weights(tmp_path / "weights.h5")
    pixels = np.random.default_rng(0).integers(0, 255, (3, 40, 30, 3))
    encoder = FeatureEncoder({"x": f"image:MobileNetV2:{tmp_path / 'weights.h5'}"})
    X = encoder.fit_transform(pa.table({"x": [png(picture) for picture in pixels]}))
    assert X.shape == (3, 2)


def digit_tables(images, labels, rng, n_users=80, per_item=12):
    """Give ratings of users who like some digits, and the digits as items."""
    likes = rng.random((n_users, 10)) < 0.5
    item = np.repeat(np.arange(len(labels)), per_item)
    user = rng.integers(0, n_users, len(item))
    rating = np.where(likes[user, labels[item]], 4.5, 1.5) + rng.normal(0, 0.3, len(item))
    ratings = pa.table({"user_id": user, "item_id": item, "rating": np.clip(rating, 1, 5)})
    pictures = [png(image[:, :, None]) for image in images]
    return ratings, pa.table({"item_id": np.arange(len(labels)), "picture": pictures})


@pytest.mark.slow
def test_new_digits_are_new_items(tmp_path, mnist):
    """Half of the digits train a small network; the other half are items, known by its vectors."""
    with np.load(mnist / "mnist10k.npz") as file:
        images, labels = file["images"][:2400], file["labels"][:2400]
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((28, 28, 1)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
    ]
    network = keras.Sequential(layers)
    trained = keras.Sequential([network, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained.compile("adam", loss)
    trained.fit(images[:2000, :, :, None], labels[:2000], epochs=4, verbose=0)
    network.save(tmp_path / "digits.keras")
    ratings, items = digit_tables(images[2000:], labels[2000:], np.random.default_rng(0))
    split = cold_start_split(Ratings.from_table(ratings), random_state=0)
    columns = {"picture": f"image:{tmp_path / 'digits.keras'}"}
    settings = {"bounds": (1, 5), "random_state": 0, "embedding_dim": 8, "epochs": 10}
    model = TwoTower(item_columns=columns, **settings).fit(split.train, items=items)
    new = split.new_items
    error = np.sqrt(np.mean((model.predict(new.to_arrow(), items=items) - new.values) ** 2))
    assert error < 0.85 * np.std(new.values)
