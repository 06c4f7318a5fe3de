"""Folders of exported programs that were made to do harm: nothing in them runs, or leads out of them; errors name file and value."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir.dialects import stablehlo as dialect
from torch import nn

from torch_xla import stablehlo
from torch_xla.stablehlo import StableHLOGraphModule
from xla_core.base.errors import ExecutionError, ExportFolderError
from xla_core.features.export.torch_export import pytree_text
from xla_core.features.export.torch_export.folder_index import INDEX, Entry, Index, dump

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),))
    options = stablehlo.StableHLOExportOptions(inline_all_constant=False)
    stablehlo.save_as_stablehlo(program, str(folder), options)
    return folder


@pytest.fixture
def folder(tmp_path: Path, original: Path) -> Path:
    """One without index, which may be changed."""
    copied = tmp_path / "top" / "exported"
    shutil.copytree(original, copied)
    (copied / INDEX).unlink()
    return copied


def load(folder: Path) -> StableHLOGraphModule:
    return StableHLOGraphModule.load(str(folder))


def change(folder: Path, **fields: Any) -> Path:
    meta = folder / "functions/forward.meta"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), **fields}))
    return meta


def spec(kind: Any, context: Any, *children: Any) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(children)}])


def enum(module: str, item: str) -> dict[str, Any]:
    return {"__enum__": True, "fqn": module, "name": item}


HOSTILE_NESTINGS: list[tuple[str, str]] = [
    (spec("builtins.dict", json.dumps([enum("os:environ", "HOME")]), LEAF), "context"),
    (spec("builtins.dict", json.dumps([enum("imported_by_a_file:x", "x")]), LEAF), "context"),
    (spec("builtins.tuple", json.dumps(enum("imported_by_a_file:x", "x")), LEAF), "not null"),
    (spec("builtins.list", json.dumps([enum("imported_by_a_file:x", "x")]), LEAF), "not null"),
    (spec("collections.OrderedDict", json.dumps([enum("imported_by_a_file:x", "x")]), LEAF), "context"),
    (spec("collections.deque", json.dumps(enum("imported_by_a_file:x", "x")), LEAF), "not null"),
    (
        spec(
            "collections.defaultdict",
            {"default_factory_module": "imported_by_a_file", "default_factory_name": "x", "dict_context": ["a"]},
            LEAF,
        ),
        "collections.defaultdict",
    ),
    (spec("collections.namedtuple", "imported_by_a_file.X", LEAF), "collections.namedtuple"),
    (spec("imported_by_a_file.X", "null", LEAF), "imported_by_a_file.X"),
    (spec("builtins.dict", "[[1]]", LEAF), "keys that are texts or numbers"),
    (spec("builtins.dict", '["a", "a"]', LEAF, LEAF), "occurs twice"),
    (spec("builtins.dict", "[NaN]", LEAF), "NaN"),
    (spec("builtins.dict", "[" * 100_000, LEAF), "no JSON"),
    (spec("builtins.dict", ["a"], LEAF), "no text"),
    (spec(["builtins.tuple"], "null", LEAF), "type"),
    (spec("builtins.tuple", "null", *[LEAF] * (pytree_text.MOST_NODES + 1)), "more than"),
    (spec("builtins.tuple", "null", LEAF, LEAF), "leaves"),
    (spec("builtins.tuple", "null", {**LEAF, "more": 1}), "without type"),
    (f"[1, {'[' * 50_000}{']' * 50_000}]", "a nesting"),
    ("[2, null]", "a nesting is"),
    ("[1]", "a nesting is"),
    ("", "no JSON"),
]


@pytest.mark.parametrize("side", ["input_pytree_spec", "output_pytree_spec"])
@pytest.mark.parametrize(("text", "message"), HOSTILE_NESTINGS)
def test_nestings_run_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, side: str, text: str, message: str) -> None:
    (folder / "imported_by_a_file.py").write_text("x = {'x': 1}\nclass X(tuple): pass\n")
    monkeypatch.syspath_prepend(folder)
    arguments = "leaves" in message and side == "input_pytree_spec"  # more arguments than are used may be
    meta = change(folder, **{side: text})
    if arguments:
        assert len(load(folder).bundle.stablehlo_funcs) == 1
        return
    with pytest.raises(ExportFolderError, match=f"{re.escape(str(meta))} cannot be read.*{message}.*save the program again"):
        load(folder)
    assert "imported_by_a_file" not in sys.modules


def nested(depth: int) -> str:
    node = LEAF
    for _ in range(depth):
        node = {"type": "builtins.list", "context": "null", "children_spec": [node]}
    return json.dumps([1, node])


def test_how_deep_nestings_may_be() -> None:
    assert pytree_text.loads(nested(pytree_text.MOST_NESTED)).num_leaves == 1
    endless = '[1, {"type": "builtins.list", "context": "null", "children_spec": [' + '{"type": null, "children_spec": [' * 100_000
    for text in (nested(pytree_text.MOST_NESTED + 1), nested(250), endless):
        with pytest.raises(ValueError, match="a nesting"):
            pytree_text.loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.just("../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["__enum__", "fqn", "name", "shape"]), inner, max_size=3),
    max_leaves=4,
)


@given(data=st.data())
def test_metas_of_strangers_load_or_are_refused(tmp_path_factory: pytest.TempPathFactory, original: Path, data: st.DataObject) -> None:
    """Whatever stands in one place of the meta: it is refused with the file's name, or loads, and then runs or refuses the call."""
    folder = tmp_path_factory.getbasetemp() / "strange"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    (folder / INDEX).unlink()
    meta = folder / "functions/forward.meta"
    about = json.loads(meta.read_text())
    held: Any = [about]
    key: Any = 0
    while isinstance(held[key], (dict, list)) and held[key] and (held[key] is about or data.draw(st.booleans())):
        held = held[key]
        key = data.draw(st.sampled_from(sorted(held) if isinstance(held, dict) else range(len(held))))
    held[key] = data.draw(JSON)
    meta.write_text(json.dumps(about))
    try:
        module = load(folder)
    except ExportFolderError as error:
        assert str(folder) in str(error)
        return
    with suppress(ValueError, IndexError, ExecutionError):
        module(torch.ones(1, 3))


NO_NAMES = ["../../x", "..", ".", "", "/etc/x", "a/b", "a\\b", "a\0b", "a\nb", ".hidden", "x" * 300, "\ud800"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_are_names_of_files(folder: Path, name: str) -> None:
    outside = folder.parent.parent
    (outside / "x.bytecode").write_bytes(b"secret")
    meta = change(folder, name=name)
    with pytest.raises(ExportFolderError, match=f"{re.escape(str(meta))} cannot be read.*is no name of a file"):
        load(folder)
    about = json.loads(meta.read_text())
    wrong = [{**each, "name": name} if each["type_"] == "parameter" else each for each in about["input_locations"]]
    change(folder, name="forward", input_locations=wrong)
    with pytest.raises(ExportFolderError, match=f"{re.escape(str(meta))} cannot be read.*is no name of a file"):
        load(folder)
    bundle = StableHLOGraphModule.load(str(_restored(folder, about))).bundle
    bundle.state_dict[name] = np.ones(2)
    with pytest.raises(ValueError, match="a weight cannot be saved.*is no name of a file"):
        StableHLOGraphModule(bundle).save(str(outside / "new"))
    assert not (outside / "new").exists() and {child.name for child in outside.iterdir()} == {"top", "x.bytecode"}


def _restored(folder: Path, about: dict[str, Any]) -> Path:
    (folder / "functions/forward.meta").write_text(json.dumps({**about, "name": "forward"}))
    return folder


def test_a_name_is_that_of_its_file(folder: Path) -> None:
    change(folder, name="backward")
    with pytest.raises(ExportFolderError, match="its name is 'backward', and that of its file 'forward'"):
        load(folder)


Make = Callable[[Path, Path], None]
SPECIAL: dict[str, tuple[Make, str]] = {
    "pipe": (lambda path, _: os.mkfifo(path), "is a pipe, device or socket"),
    "folder": (lambda path, _: path.mkdir(), "is a folder"),
    "device": (lambda path, _: path.symlink_to("/dev/zero"), "is a link out of the folder"),
    "link": (lambda path, outside: path.symlink_to(outside), "is a link out of the folder"),
    "relative": (lambda path, outside: path.symlink_to(os.path.relpath(outside, path.parent)), "is a link out of the folder"),
    "circle": (lambda path, _: path.symlink_to(path.name), "is a link out of the folder"),
}
NAMES = ["functions/forward.meta", "functions/forward.bytecode", "functions/forward.mlir", "data/weight", INDEX]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("checked", [True, False])
def test_only_regular_files_of_the_folder_are_opened(folder: Path, original: Path, kind: str, name: str, checked: bool) -> None:
    shutil.copyfile(original / INDEX, folder / INDEX)
    outside = folder.parent / "outside"
    shutil.move(folder / name, outside)
    if not checked:
        (folder / INDEX).unlink(missing_ok=True)
    make, message = SPECIAL[kind]
    make(folder / name, outside)
    with pytest.raises(ExportFolderError, match=f"{re.escape(str(folder / name))} {message}"):
        load(folder)


def test_a_device_is_not_read(folder: Path) -> None:
    weight = folder / "data/weight"
    weight.unlink()
    try:
        os.mknod(weight, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        pytest.skip("making a device is not permitted here")
    with pytest.raises((ExportFolderError, PermissionError), match=str(weight)):
        load(folder)


@pytest.mark.parametrize("name", ["functions", "data"])
def test_folders_are_no_links_out_of_the_folder(folder: Path, original: Path, name: str) -> None:
    outside = folder.parent / "outside"
    shutil.move(folder / name, outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ExportFolderError, match=f"{folder / name} is no folder"):
        load(folder)
    before = {file: file.read_bytes() for file in outside.iterdir()}
    with pytest.raises(ExportFolderError, match=f"{folder / name} is a link or a file"):
        load(original).save(str(folder))
    shutil.copyfile(original / INDEX, folder / INDEX)
    with pytest.raises(ExportFolderError, match="is a link out of the folder"):
        load(folder)
    with pytest.raises(ExportFolderError, match=f"{folder / name} is a link or a file"):
        load(original).save(str(folder))
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


def test_links_that_stay_in_the_folder_are_followed(folder: Path, original: Path) -> None:
    shutil.copyfile(original / INDEX, folder / INDEX)
    shutil.move(folder / "data", folder / "blobs")
    (folder / "data").mkdir()
    for file in (folder / "blobs").iterdir():
        (folder / "data" / file.name).symlink_to(f"../blobs/{file.name}")
    assert torch.equal(load(folder)(torch.ones(1, 3)).cpu(), load(original)(torch.ones(1, 3)).cpu())
    load(original).save(str(folder))  # takes the place of the links, not of what they lead to
    assert not (folder / "data/weight").is_symlink() and (folder / "blobs/weight").exists()


def test_an_index_leads_nowhere_else(folder: Path, original: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("secret")
    entry = Entry(6, "0" * 64)
    hostile = [
        Index(1, "0" * 16, {"data/../../secret": entry}, []),
        Index(1, "0" * 16, {"/etc/passwd": entry}, []),
        Index(1, "0" * 16, {}, ["data/../../secret"]),
        Index(1, "../../../../x", {}, []),
        Index(1, "0" * 16, {"data/x": Entry(6, "x")}, []),
    ]
    for index in hostile:
        (folder / INDEX).write_bytes(dump(index))
        with pytest.raises(ExportFolderError, match=f"{folder / INDEX} is damaged, or no index"):
            load(folder)
        load(original).save(str(folder))
        assert secret.read_text() == "secret"
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "weight").write_text("mine")
    (folder / INDEX).write_bytes(dump(Index(1, "0" * 16, {"data/weight": entry}, [])))
    staging = folder / f".export-{'0' * 16}"
    staging.mkdir()
    (staging / "data").symlink_to(outside)
    with pytest.raises(ExportFolderError, match="is a link"):
        load(original).save(str(folder))
    assert (outside / "weight").read_text() == "mine"


def test_sizes_are_bounded_before_anything_is_read(folder: Path) -> None:
    """Files that take no room on the disk, and say they have a terabyte."""
    for name in ("functions/forward.meta", "data/weight", INDEX):
        path, kept = folder / name, (folder / name).read_bytes() if name != INDEX else b""
        with path.open("ab") as file:
            file.truncate(1 << 40)
        with pytest.raises(ExportFolderError, match=f"{path} (has 1099511627776 bytes|is larger)"):
            load(folder)
        path.write_bytes(kept)
        if name == INDEX:
            path.unlink()
    assert load(folder)(torch.ones(1, 3)).shape == (1, 2)


def saved_array(path: Path, array: Any) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=True)


class Harm:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HARM"],)


def test_arrays_hold_numbers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARM", str(tmp_path / "harm"))
    weight = folder / "data/weight"
    for array in (np.array([Harm()]), np.zeros(6, [("a", "f4")]), np.array(["text"]), np.array(["2000-01-01"], "M8[D]")):
        saved_array(weight, array)
        with pytest.raises(ExportFolderError, match=f"{weight} cannot be read"):
            load(folder)
    header = b"\x93NUMPY\x01\x00"
    for text in ("(" * 5000, "{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000), }", "__import__('os').getcwd()"):
        weight.write_bytes(header + len(text).to_bytes(2, "little") + text.encode())
        with pytest.raises(ExportFolderError, match=f"{weight} cannot be read"):
            load(folder)
    assert not (tmp_path / "harm").exists()


def test_seeds_are_bounded(folder: Path) -> None:
    change(
        folder,
        input_locations=[{"type_": "seeds", "position": -1, "name": ""}],
        input_signature=[{"shape": [10**12, 2], "dtype": "uint32", "dynamic_dims": []}],
    )
    with pytest.raises(ExportFolderError, match="it takes seeds of shape"):
        load(folder)


CALL = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
  %many = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %many, %y = %x) : tensor<i32>, tensor<2xf32>
  cond {{
    %more = stablehlo.compare GT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    %z = stablehlo.custom_call @{target}(%y) {{backend_config = {{index = 7 : ui64}}, api_version = 4 : i32}}
      : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %i, %z : tensor<i32>, tensor<2xf32>
  }}
  return %0#1 : tensor<2xf32>
}}
"""
CALLBACKS = ["xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback", "xla_buffer_python_cpu_callback"]


def artifact_calling(target: str) -> bytes:
    return bytes(dialect.serialize_portable_artifact_str(CALL.format(target=target), dialect.get_current_version()))


@pytest.mark.parametrize("target", CALLBACKS)
def test_programs_do_not_call_python(folder: Path, target: str) -> None:
    """XLA would call whatever it finds at that place of a list that it does not look up the length of."""
    code = folder / "functions/forward.bytecode"
    code.write_bytes(artifact_calling(target))
    with pytest.raises(ExportFolderError, match=f"{code} cannot be read: it calls Python \\({target}\\)"):
        load(folder)
    code.write_bytes(artifact_calling("lapack_sgetrf_ffi"))
    assert load(folder).get_stablehlo_bytecode() == code.read_bytes()


@pytest.mark.parametrize("content", [b"", b"module {}", CALL.encode(), b"ML\xefR custom_call"])
def test_programs_are_artifacts(folder: Path, content: bytes) -> None:
    (folder / "functions/forward.bytecode").write_bytes(content)
    with pytest.raises(ExportFolderError, match="it is no artifact of StableHLO"):
        load(folder)
