"""Keras on its torch backend beside torch_xla: trains, asks for devices, exports as a SavedModel of StableHLO; reports what it found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import tensorflow
import torch
from sklearn.datasets import load_digits

import torch_xla
import torch_xla.core.xla_model as xm


def model() -> keras.Model:
    layers = [keras.layers.Reshape((8, 8, 1)), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten()]
    made = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers = np.random.default_rng(0)
    made.set_weights([numbers.normal(0, 0.1, weight.shape) for weight in made.get_weights()])  # the same on each device
    return made


def exported(network: keras.Model, images: np.ndarray, expected: np.ndarray, folder: str) -> float:
    """How far the outputs of the exported model are from those expected."""
    network.export(folder, input_signature=[keras.layers.InputSpec(shape=images.shape, dtype="float32")], verbose=False)
    loaded = tensorflow.saved_model.load(folder)  # its functions do not keep its variables
    return float(np.abs(loaded.serve(images).numpy() - expected).max())


def main() -> None:
    report = Path(sys.argv[1])
    on_xla = os.environ.get("KERAS_TORCH_DEVICE") == "xla"
    images, labels = load_digits(return_X_y=True)
    images = images[:64].astype("float32") / 16
    network = model()
    before = torch_xla._XLAC._xla_runtime_is_initialized()
    losses = network.fit(images, labels[:64], batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    expected = network.predict(images[:2], verbose=0)
    after = torch_xla._XLAC._xla_runtime_is_initialized()
    error = None if on_xla else exported(network, images[:2], expected, str(report.parent / "model"))
    found = {
        "devices": sorted({parameter.device.type for parameter in network.parameters()}),
        "started": [before, after],
        "tpus": xm.get_xla_supported_devices("TPU"),
        "accelerators": xm.xla_device_count(),
        "cuda": torch.cuda.is_available(),
        "losses": losses,
        "error": error,
    }
    report.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
