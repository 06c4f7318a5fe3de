"""The script that runs PyTorch's tests can be trusted: what fails, ends the process, takes too long or is skipped is told apart."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import fcntl, os, time, torch
from torch.testing._internal.common_device_type import dtypes, expectedFailureXLA, instantiate_device_type_tests, onlyCPU, skipXLA
from torch.testing._internal.common_methods_invocations import binary_ufuncs_and_refs  # torch 2.6 has it
from torch.testing._internal.common_utils import TestCase

class TestSome(TestCase):
    def test_passes(self, device):
        print("not an answer")
        self.assertEqual((torch.ones(3, device=device) * 2).sum().item(), 6)

    @dtypes(torch.float32, torch.int64)
    def test_cpu_in_its_name(self, device, dtype):
        self.assertEqual(torch.ones(2, device=device, dtype=dtype).cpu(), torch.ones(2, dtype=dtype))

    def test_fails(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_fails_in_a_part(self, device):
        for number in range(2):
            with self.subTest(number=number):
                self.assertEqual(torch.device(device).type, "cpu")
        with self.subTest():
            self.skipTest("a part is not the test")

    def test_ends(self, device):
        if "xla" in device:
            os._exit(3)

    def test_takes_long(self, device):
        if "xla" in device:
            held = open("held", "w")
            fcntl.flock(held, fcntl.LOCK_EX)
            os.fork()  # a process of the test, as its ranks are
            time.sleep(600)

    def test_skips(self, device):
        if "xla" in device:
            self.skipTest("not there")

    def test_float_to_int_conversion_finite(self, device):
        if "xla" in device:
            raise ValueError("planted in a test of which only another error is excluded")

    @skipXLA
    def test_that_another_project_skips(self, device):
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    @expectedFailureXLA
    def test_that_another_project_fails(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    @onlyCPU
    def test_for_the_cpu(self, device):
        pass

    def test_refused(self, device):
        torch.eye(3, device=device).to_sparse()

    def test_wrong_on_the_cpu(self, device):
        raise ValueError("planted")

class TestWithoutADevice(TestCase):
    def test_nothing(self):
        raise ValueError("not asked for")

class TestOfTheDevicesThatItsAuthorsHad(TestCase):
    def setUp(self):
        super(self.__class__, self).setUp()

    def test_there(self, device):
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

class TestOfTheCpu(TestCase):
    def test_there(self, device):
        pass

instantiate_device_type_tests(TestSome, globals())
instantiate_device_type_tests(TestOfTheDevicesThatItsAuthorsHad, globals(), only_for=("cpu", "cuda"))
instantiate_device_type_tests(TestOfTheCpu, globals(), only_for="cpu")
"""


OF_RANKS = """
import os, torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

class TestRanks(DTensorTestBase):
    world_size = 2

    @with_comms
    def test_sums_over_ranks(self):
        local = torch.full((2,), float(self.rank), device=self.device_type)
        shared = DTensor.from_local(local, self.build_device_mesh(), [Shard(0)])
        self.assertEqual(shared.to_local().device.type, self.device_type)
        self.assertEqual(shared.full_tensor().tolist(), [0.0, 0.0, 1.0, 1.0])

    @with_comms
    def test_fails_in_a_rank(self):
        self.assertNotEqual((self.rank, self.device_type), (1, "xla"))

class TestAlone(TestCase):
    def test_of_no_device(self):
        self.assertEqual(torch.ones(2).sum().item(), 2)
"""
OF_COLLECTIVES = """
import functools, torch, torch.distributed as dist
from torch.testing._internal.distributed.distributed_test import TestDistBackend

class TestCollectives(TestDistBackend):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _barrier(self):
        dist.barrier()

    def test_sums_by_a_group_of_gloo(self):
        x = torch.ones(2)
        dist.all_reduce(x)
        self.assertEqual((x.tolist(), dist.get_backend()), ([3.0, 3.0], "gloo"))

    def test_makes_tensors_on_the_cpu(self):
        self.assertEqual(torch.ones(2).device.type, "cpu")

    @functools.wraps(test_makes_tensors_on_the_cpu)
    def test_ddp_has_finalized(self):  # which the base class looks for, and whose end it does not check
        pass
"""
MARKED = "<!-- {0} -->\nold\n<!-- /{0} -->\n"
FEW = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestFew(TestCase):
    def test_first(self, device):
        pass

    def test_second(self, device):
        pass

    def test_third(self, device):
        pass

instantiate_device_type_tests(TestFew, globals())
"""
PAGE = f"before\n{MARKED.format('conformance')}{MARKED.format('exclusions')}behind\n"
PLANTED = "ValueError: planted in a test of which only another error is excluded"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "conformance"), "--tests", str(folder), "--record", str(folder / "record"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tests above and a file that cannot be loaded were run."""
    folder = tmp_path_factory.mktemp("tests")
    (folder / "test_some.py").write_text(TESTS, encoding="utf-8")
    (folder / "test_broken.py").write_text("import no_such_module\n", encoding="utf-8")
    (folder / "conformance.md").write_text(PAGE, encoding="utf-8")
    done = run(folder, "--into", str(folder), "--limit", "12", "test_some.py", "test_broken.py")
    assert done.returncode == 0, done.stderr
    return folder


def files(folder: Path) -> list[dict[str, Any]]:
    versions = json.loads((folder / "conformance.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = next(version["files"] for version in versions if version["torch"] == torch.__version__)
    return rows


def test_what_becomes_of_tests_is_told_apart(folder: Path) -> None:
    some = files(folder)[0]
    assert (some["tests"], some["run"], some["asked"], some["passed"]) == (16, 16, 12, 5)
    assert some["failed"] == {"AssertionError: String comparison failed: 'xla' != 'cpu'": 3, "ended": 1, "timeout": 1, PLANTED: 1}
    assert some["refused"] == {"sparse": 1} and some["not_on_cpu"] == {"failed": 1}
    assert some["skipped"] == {"not there": 1, "Only runs on cpu": 1, "not made for other devices": 1}


def test_processes_of_a_test_that_takes_too_long_end_with_it(folder: Path) -> None:
    with (folder / "held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_cannot_be_loaded_says_so(folder: Path) -> None:
    assert files(folder)[1]["error"].startswith("on cpu: ModuleNotFoundError: No module named 'no_such_module'")


def test_the_page_has_the_results_between_its_marks(folder: Path) -> None:
    page = (folder / "conformance.md").read_text(encoding="utf-8")
    assert page.startswith("before\n") and page.endswith("behind\n") and "old" not in page and "| sparse | xla tensors are dense |" in page
    assert "| test_some.py | 16 | 12 | 5 | 45.4 % | 1 | 6 | 3 | 1 |" in page and "| test_broken.py | | | |" in page


def test_a_later_run_goes_on_where_the_record_ends(folder: Path) -> None:
    record = folder / "record" / "test_some.jsonl"
    lines = [line for line in record.read_text(encoding="utf-8").splitlines() if "test_passes" not in line]
    record.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    done = run(folder, "--limit", "12", "test_some.py")
    assert "5 of 11 pass (45.4 %), 1 refused" in done.stdout
    added = record.read_text(encoding="utf-8").splitlines()[len(lines) :]
    assert [json.loads(line).get("name") for line in added if '"name"' in line] == ["TestSome.test_passes"] * 2


def test_a_sample_is_spread_evenly(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(FEW, encoding="utf-8")
    (tmp_path / "conformance.md").write_text(PAGE, encoding="utf-8")
    earlier = {
        "file": "test_earlier.py",
        "tests": 7,
        "run": 7,
        "asked": 7,
        "passed": 6,
        "failed": {"ended": 1},
        "seconds": {"cpu": 1, "xla": 2},
    }
    known = [
        {"torch": "2.0.0", "machine": "Python 3.8", "files": [{"file": "test_many.py", "error": "then"}]},
        {"torch": torch.__version__, "machine": "Python 3.8", "files": [earlier, {"file": "test_many.py", "error": "once"}]},
    ]
    (tmp_path / "conformance.json").write_text(json.dumps(known), encoding="utf-8")
    assert run(tmp_path, "--sample", "2", "--into", str(tmp_path), "test_many.py").returncode == 0
    page = (tmp_path / "conformance.md").read_text(encoding="utf-8")
    assert "| test_many.py | 2 of 3 |" in page and "| test_earlier.py | 7 | 7 | 6 | 85.7 % | 0 | 1 |" in page and "once" not in page
    assert "torch 2.0.0, Python 3.8:\n\n| file |" in page and "cannot be loaded: then" in page
    assert [row["file"] for row in files(tmp_path)] == ["test_earlier.py", "test_many.py"]
    facts, *answers = map(json.loads, (tmp_path / "record" / "test_many.jsonl").read_text(encoding="utf-8").splitlines())
    assert facts["facts"]["tests"] == 3 and [answer["device"] for answer in answers].count("cpu") == 2


def test_a_part_of_a_file_has_a_row_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_parts.py").write_text(FEW, encoding="utf-8")
    (tmp_path / "conformance.md").write_text(PAGE, encoding="utf-8")
    assert run(tmp_path, "--part", "1/2", "--into", str(tmp_path), "test_parts.py").returncode == 0
    assert [(row["file"], row["tests"], row["passed"]) for row in files(tmp_path)] == [("test_parts.py 1/2", 2, 2)]
    answers = (tmp_path / "record" / "test_parts-1-2.jsonl").read_text(encoding="utf-8")
    assert "test_first" in answers and "test_third" in answers and "test_second" not in answers


def test_what_names_no_part_is_refused(tmp_path: Path) -> None:
    assert "'3/2' names no part" in run(tmp_path, "--part", "3/2", "test_parts.py").stderr


@pytest.mark.parametrize("named", ["torch.complex32", "torch.float16, torch.complex32", "torch.int8"])
def test_an_operator_that_lacks_other_dtypes_too_is_not_excused_by_one(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("exclusions_of_conformance", ROOT / "scripts" / "conformance" / "exclusions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look
    spec.loader.exec_module(module)
    text = f"did not work in forward but are listed by the OpInfo: {{{named}}}.\ntorch.complex32 has no counterpart on XLA devices"
    assert (module.exclusion_of("TestCommon.test_dtypes_add", text) is not None) is (named == "torch.complex32")


def test_a_file_that_is_not_there_is_refused(folder: Path) -> None:
    assert "has no test_none.py" in run(folder, "test_none.py").stderr


def test_marks_of_operators_without_samples_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "common_utils.py").write_text(
        "from types import SimpleNamespace as N\n"
        "op_db = [N(name='add', variant_test_name='')]\n"
        "additional_op_db = autograd_function_db = custom_op_db = []\n"
        "seen = []\n"
        "def skipOps(test_class, test, marks): seen.extend(mark.op_name for mark in marks)\n"
        "def opsToleranceOverride(test_class, test, marks): seen.extend(mark[0] for mark in marks)\n",
        encoding="utf-8",
    )
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from pathlib import Path; from types import SimpleNamespace as N\n"
        "import helpers; absent = helpers.drop_marks_of_absent_operators(Path(sys.argv[2])); import common_utils\n"
        "common_utils.skipOps('C', 'f', [N(op_name='add', variant_name=''), N(op_name='gone', variant_name='a')])\n"
        "common_utils.opsToleranceOverride('C', 'f', [('add', '', {}, None), ('lost', '', {}, None)])\n"
        "print(common_utils.seen, absent)\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "scripts" / "conformance"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['add', 'add'] ['samples of gone.a', 'samples of lost.']\n"


def row_of_ranks(folder: Path, file: str, tests: str) -> dict[str, Any]:
    """What becomes of tests that start a process for each rank, which stand in a file of `distributed/`. One cause of failures: a rank."""
    (folder / "distributed").mkdir()
    (folder / "distributed" / file).write_text(tests, encoding="utf-8")
    (folder / "conformance.md").write_text(PAGE, encoding="utf-8")
    done = run(folder, "--into", str(folder), f"distributed/{file}")
    assert done.returncode == 0, done.stderr
    (row,) = files(folder)
    (cause,) = row["failed"]
    assert cause.startswith("RuntimeError: Process # exited with error code")
    return row


def test_tests_that_start_a_process_for_each_rank(tmp_path: Path) -> None:
    row = row_of_ranks(tmp_path, "test_ranks.py", OF_RANKS)
    assert (row["tests"], row["asked"], row["passed"]) == (3, 3, 2), row


def test_collectives_of_torch_run_on_tensors_of_xla(tmp_path: Path) -> None:
    row = row_of_ranks(tmp_path, "test_distributed_spawn.py", OF_COLLECTIVES)
    assert (row["tests"], row["asked"], row["passed"]) == (3, 3, 2), row  # the one that asks for tensors on the CPU fails
