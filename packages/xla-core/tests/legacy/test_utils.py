"""Small helpers."""

from __future__ import annotations

import gc
import os
import re
import socket
import threading

import pytest
import torch

from torch_xla.utils import utils as xu


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [("1", bool, True), ("0", bool, False), ("12", int, 12), ("0.5", float, 0.5), ("a b", str, "a b"), ("", str, "")],
)
def test_getenv_as(text: str, kind: type, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XU_TEST", text)
    got = xu.getenv_as("XU_TEST", kind, None)
    assert got == expected and type(got) is kind


def test_getenv_as_unset_and_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XU_TEST", raising=False)
    assert xu.getenv_as("XU_TEST", int) is None
    assert xu.getenv_as("XU_TEST", bool, True) is True
    monkeypatch.setenv("XU_TEST", "true")
    with pytest.raises(ValueError):
        xu.getenv_as("XU_TEST", bool)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("TRUE", True), ("1", True), ("7", True), ("0", False), ("-1", False), ("yes", False), ("", False)],
)
def test_check_env_flag(text: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XU_TEST", text)
    assert xu.check_env_flag("XU_TEST") is expected
    monkeypatch.delenv("XU_TEST")
    assert xu.check_env_flag("XU_TEST", default=text) is expected


def test_lazy_property_is_made_once() -> None:
    made: list[int] = []

    def make() -> None:
        made.append(1)

    lazy = xu.LazyProperty(make)
    assert made == []
    assert lazy.value is None and lazy.value is None and made == [1]


def test_sample_generator_can_be_iterated_again() -> None:
    data = (torch.ones(2), torch.zeros(1))
    samples = xu.SampleGenerator(data, 3)
    assert len(samples) == 3
    assert [sample is data for sample in samples] == [True] * 3 == [sample is data for sample in samples]


def test_fn_data_generator() -> None:
    generator = xu.FnDataGenerator(lambda x: x * 2, 4, torch.ones, dims=[3], count=2)
    pairs = list(generator)
    assert len(generator) == len(pairs) == 2
    for data, target in pairs:
        assert torch.equal(data, torch.ones(4, 3)) and torch.equal(target, data * 2)
    assert next(iter(xu.FnDataGenerator(torch.neg, 5, torch.zeros)))[0].shape == (5, 1)


def test_cleaner_runs_once() -> None:
    calls: list[tuple[int, str]] = []

    def note(number: int, *, word: str) -> None:
        calls.append((number, word))

    with xu.Cleaner(note, 1, word="a") as cleaner:
        assert calls == []
    cleaner.close()
    assert calls == [(1, "a")]
    dropped = xu.Cleaner(note, 2, word="b")
    del dropped
    gc.collect()
    assert calls[-1] == (2, "b") and len(calls) == 2


def test_tmp_folder_goes_with_its_content() -> None:
    folder = xu.TmpFolder()
    path = folder.name
    with open(os.path.join(path, "f"), "w") as file:
        file.write("x")
    del folder
    gc.collect()
    assert not os.path.exists(path)
    with xu.TmpFolder() as inside:
        assert os.path.isdir(inside)
    assert not os.path.exists(inside)


def test_timed_prints_and_returns(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    assert xu.timed(lambda: 5, msg="took ", printfn=lines.append) == 5
    assert re.fullmatch(r"took \d+\.\d{3}ms", lines[0])
    with pytest.raises(KeyError), xu.TimedScope("fails "):
        raise KeyError
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"fails \d+\.\d{3}ms\n", err)


def test_eprint(capsys: pytest.CaptureFixture[str]) -> None:
    xu.eprint("a", 1, sep="-")
    assert capsys.readouterr() == ("", "a-1\n")


def test_parallel_work_keeps_order_and_uses_threads() -> None:
    meet = threading.Barrier(2, timeout=60)

    def work(a: int, b: int) -> int:
        meet.wait()
        return a - b

    assert xu.parallel_work(2, work, [1, 2, 3, 4], [10, 20, 30, 40]) == [-9, -18, -27, -36]
    with pytest.raises(ZeroDivisionError):
        xu.parallel_work(2, lambda x: 1 / x, [1, 0])


def test_free_ports_are_different_and_free() -> None:
    ports = xu.get_free_tcp_ports(3)
    assert len(set(ports)) == 3
    with socket.socket() as listener:
        listener.bind(("", ports[0]))


def test_as_list() -> None:
    kept = [1]
    assert xu.as_list(kept) is kept
    assert xu.as_list((1, 2)) == [1, 2] and xu.as_list("ab") == ["ab"] and xu.as_list(None) == [None]


@pytest.mark.parametrize(
    ("nested", "expected"), [([[1, 2, 3], [4, 5, 6]], [2, 3]), (((1,), (2,)), [2, 1]), (7, []), ([], [0]), ([[], []], [2, 0])]
)
def test_shape(nested: object, expected: list[int]) -> None:
    assert xu.shape(nested) == expected


def test_shape_of_ragged() -> None:
    with pytest.raises(ValueError, match="ragged"):
        xu.shape([[1], [1, 2]])


def test_flatten_nested_tuple() -> None:
    assert xu.flatten_nested_tuple((1, (2, [3, 4]), ((), ((5,),)))) == (1, 2, [3, 4], 5)
    assert xu.flatten_nested_tuple([1]) == ([1],)


def test_list_copy_append() -> None:
    kept = [1]
    assert xu.list_copy_append(kept, 2) == [1, 2] and kept == [1]


def test_print_functions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert xu.get_print_fn(True) is xu.eprint and xu.get_print_fn(False) is xu.null_print
    monkeypatch.delenv("XLA_DEBUG", raising=False)
    assert xu.get_print_fn() is xu.null_print
    monkeypatch.setenv("XLA_DEBUG", "1")
    assert xu.get_print_fn() is xu.eprint
    xu.null_print("nothing", end="")
    assert capsys.readouterr() == ("", "")
