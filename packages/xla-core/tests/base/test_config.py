"""The table of environment variables."""

import pytest

from xla_core.base import config
from xla_core.base.config import FallbackPolicy, override


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in config.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)


@pytest.mark.parametrize(
    ("setting", "name", "default"),
    [
        (config.ALWAYS_ALLREDUCE, "XLA_ALWAYS_ALLREDUCE", False),
        (config.RATE_TRACKER_SMOOTHING, "RATE_TRACKER_SMOOTHING", 0.4),
        (config.EMIT_STEPLOG, "XLA_EMIT_STEPLOG", False),
        (config.SYNC_WAIT, "XLA_SYNC_WAIT", None),
        (config.USE_SPMD, "XLA_USE_SPMD", False),
        (config.USE_BF16, "XLA_USE_BF16", False),
        (config.DOWNCAST_BF16, "XLA_DOWNCAST_BF16", False),
        (config.HLO_DEBUG, "XLA_HLO_DEBUG", False),
        (config.PJRT_DEVICE, "PJRT_DEVICE", None),
        (config.CPU_NUM_DEVICES, "CPU_NUM_DEVICES", 1),
        (config.COMPILATION_CACHE_SIZE, "XLA_COMPILATION_CACHE_SIZE", 2048),
        (config.METRICS_SAMPLES, "XLA_METRICS_SAMPLES", 1024),
        (config.MAX_ASYNC_QUEUE, "XLA_MAX_ASYNC_QUEUE", 100),
        (config.FALLBACK, "XLA_FALLBACK", FallbackPolicy.ALLOW),
    ],
)
def test_names_and_defaults(setting: config.Setting[object], name: str, default: object) -> None:
    assert (setting.name, setting.get(), setting.is_set()) == (name, default, False)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (config.EMIT_STEPLOG, "1", True),
        (config.EMIT_STEPLOG, "0", False),
        (config.USE_SPMD, "true", True),
        (config.USE_SPMD, "False", False),
        (config.USE_SPMD, "2", True),
        (config.SYNC_WAIT, "0", False),
        (config.SYNC_WAIT, "1", True),
        (config.CPU_NUM_DEVICES, "8", 8),
        (config.RATE_TRACKER_SMOOTHING, "0.25", 0.25),
        (config.PJRT_DEVICE, "TPU", "TPU"),
        (config.FALLBACK, "error", FallbackPolicy.ERROR),
        (config.RANK, "12355", 12355),
    ],
)
def test_texts_are_parsed_at_each_read(setting: config.Setting[object], text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting.is_set()
    assert setting.get() == value and type(setting.get()) is type(value)
    monkeypatch.delenv(setting.name)
    assert setting.get() == setting.default


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.name)
def test_empty_text_counts_as_unset(setting: config.Setting[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.name, "")
    assert setting.get() == setting.default and not setting.is_set()


@pytest.mark.parametrize(
    ("setting", "text", "allowed"),
    [
        (config.USE_SPMD, "yes", "0, 1, true or false"),
        (config.SYNC_WAIT, "-1", "0, 1, true or false"),
        (config.CPU_NUM_DEVICES, "0", "an integer of at least 1"),
        (config.CPU_NUM_DEVICES, "two", "an integer of at least 1"),
        (config.RATE_TRACKER_SMOOTHING, "1.5", "a number from 0 to 1"),
        (config.RATE_TRACKER_SMOOTHING, "nan", "a number from 0 to 1"),
        (config.FALLBACK, "never", "allow or error"),
    ],
)
def test_bad_text_names_variable_value_and_choices(
    setting: config.Setting[object], text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ValueError) as caught:
        setting.get()
    assert str(caught.value) == f"environment variable {setting.name} is {text!r}, must be {allowed}"


def test_override_restores_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    with pytest.raises(KeyError), override(config.CPU_NUM_DEVICES, 5):
        assert config.CPU_NUM_DEVICES.get() == 5
        raise KeyError
    assert config.CPU_NUM_DEVICES.get() == 2
    with override(config.SYNC_WAIT, False):
        assert config.SYNC_WAIT.get() is False
    assert not config.SYNC_WAIT.is_set()


def test_override_with_none_unsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_SYNC_WAIT", "1")
    with override(config.SYNC_WAIT, None):
        assert config.SYNC_WAIT.get() is None
    assert config.SYNC_WAIT.get() is True


@pytest.mark.parametrize(
    ("setting", "value"),
    [(config.FALLBACK, FallbackPolicy.ERROR), (config.USE_SPMD, True), (config.RATE_TRACKER_SMOOTHING, 0.1), (config.PJRT_DEVICE, "CPU")],
)
def test_set_writes_what_get_reads(setting: config.Setting[object], value: object) -> None:
    with override(setting, value):
        assert setting.get() == value


def test_set_refuses_what_get_would_refuse() -> None:
    with pytest.raises(ValueError):
        config.CPU_NUM_DEVICES.set(0)
    assert not config.CPU_NUM_DEVICES.is_set()


def test_table_is_complete_and_each_row_documented() -> None:
    names = [setting.name for setting in config.SETTINGS]
    assert len(names) == len(set(names))
    declared = [value for value in vars(config).values() if isinstance(value, config.Setting)]
    assert declared == list(config.SETTINGS)
    assert all(setting.doc.endswith(".") and setting.allowed for setting in config.SETTINGS)
