"""ignite trains and evaluates on xla as on the CPU, in one process and over two replicas of its own backend for XLA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision
from ignite.utils import convert_tensor
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(autouse=True)
def no_distributed_model_left() -> Iterator[None]:
    yield
    idist.finalize()


def digits() -> DataLoader[Any]:
    images, labels = load_digits(return_X_y=True)
    return DataLoader(TensorDataset(torch.tensor(images[:101], dtype=torch.float32) / 16, torch.tensor(labels[:101])), batch_size=32)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def trained(device: str) -> tuple[list[float], nn.Module]:
    model = network().to(device)
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy, device=device)
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(digits(), max_epochs=2)
    return losses, model


def evaluated(model: nn.Module, device: str) -> dict[str, torch.Tensor]:
    """By metrics on the CPU: ignite refuses to keep them on xla."""
    metrics = {
        "accuracy": Accuracy(),
        "loss": Loss(nn.functional.cross_entropy),
        "precision": Precision(average=False),
        "confusion": ConfusionMatrix(num_classes=10),
    }
    found = create_supervised_evaluator(model, metrics, device=device).run(digits()).metrics
    return {name: torch.as_tensor(value).cpu().double() for name, value in found.items()}


def test_training_equals_the_cpu(assert_same_weights: Callable[..., None]) -> None:
    expected, cpu = trained("cpu")
    losses, xla = trained("xla")
    assert losses == pytest.approx(expected, rel=1e-4)
    assert_same_weights(xla, cpu)


def test_metrics_equal_the_cpu() -> None:
    torch.testing.assert_close(evaluated(network().to("xla"), "xla"), evaluated(network(), "cpu"), rtol=1e-5, atol=1e-6)


def test_batches_are_converted_to_xla() -> None:
    moved = convert_tensor({"x": torch.ones(2)}, device="xla", non_blocking=True)
    assert moved["x"].device.type == "xla"


def test_the_backend_is_offered() -> None:
    assert idist.has_xla_support
    assert "xla-tpu" in idist.available_backends()


@pytest.fixture(scope="module", params=["spawn", "fork"])
def job(request: pytest.FixtureRequest, run_program: Callable[..., Any]) -> Any:
    return run_program("ignite_replicas", request.param, CPU_NUM_DEVICES="2")


def test_each_replica_knows_its_place(job: Any) -> None:
    assert [each["place"] for each in job] == [["xla-tpu", rank, rank, 2, "xla", "xla-dist"] for rank in range(2)]
    assert [each["nodes"] for each in job] == [[2, 1]] * 2


def test_collectives(job: Any) -> None:
    for each in job:
        assert (each["sum"], each["gathered"], each["broadcast"], each["text"]) == (3.0, [0, 1], [8.0], "from the first")


def test_replicas_train_as_the_cpu_with_the_batches_of_both(job: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.linspace(-1, 1, 24).unsqueeze(1)
    labels = (rows.flatten() > 0.2).long()
    for _ in range(2):
        for step in range(3):
            part = range(8 * step, 8 * step + 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows[part]), labels[part]).backward()
            optimizer.step()
    expected = [value.tolist() for value in model.state_dict().values()]
    right = (model(rows).argmax(-1) == labels).float().mean().item()
    for each in job:
        torch.testing.assert_close(torch.tensor(each["weights"][0]), torch.tensor(expected[0]), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.tensor(each["weights"][1]), torch.tensor(expected[1]), rtol=1e-5, atol=1e-6)
        assert each["metrics"]["accuracy"] == pytest.approx(right)
        assert each["metrics"]["loss"] == pytest.approx(nn.functional.cross_entropy(model(rows), labels).item(), rel=1e-5)
