"""Sharding tensors over eight devices, and clearing the sharding."""

from __future__ import annotations

from typing import Any

ROWS = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
BY_Y = "{devices=[2,1,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"
BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"
TURNED = "{devices=[2,4]0,2,4,6,1,3,5,7}"


def test_outside_spmd_mode(report: Any, refused: Any) -> None:
    found = report("marking.outside_spmd_mode")
    assert set(found) == {"mark", "manual", "_mark_manual", "apply", "upload"}
    assert all(refused(why, "RuntimeError", "use_spmd()") for why in found.values())


def test_what_is_counted(report: Any) -> None:
    """The runtime counters and metrics of SPMD mode."""
    found = report("marking.counted")
    assert found["XlaMarkSharding"] == 1 and found["VirtualDeviceUsage"] == 1
    assert found["ExecuteReplicated"] == 1 and found["ExecuteComputation"] == 0
    assert found["sum"] == 63 * 32 + 64 and "ExecuteReplicatedTime" in found["timed"]


def test_refusals(report: Any, refused: Any) -> None:
    found = report("marking.refusals")
    assert refused(found["mesh size"], "AssertionError", "(2, 2)", "4 devices", "8")
    assert refused(found["rank"], "AssertionError", "(0,)", "(8, 8)")
    assert refused(found["axis twice"], "AssertionError", "(0, 0)", "(4, 2)")
    assert refused(found["axis"], "AssertionError", "got 2", "(4, 2)")
    assert refused(found["name"], "ValueError", "'z'", "x, y")
    assert refused(found["a text"], "ValueError", "'x'", "comma")
    assert refused(found["cpu"], "RuntimeError", "Input tensor is not an XLA tensor: torch.FloatTensor")
    assert refused(found["otherwise"], "RuntimeError", BOTH, TURNED, "(8, 8)", "clear_sharding")
    assert refused(found["otherwise, replicated"], "RuntimeError", BOTH, "{replicated}")
    assert refused(found["clear cpu"], "RuntimeError", "Input tensor is not an XLA tensor")
    assert found["left alone"] == ["", BOTH]


def test_stored_data(report: Any) -> None:
    found = report("marking.stored_data")
    assert found["before"] == "" and found["text"] == [ROWS] * 3
    assert found["same wrapper"] and found["same buffer"], "the same again does nothing"
    assert found["of each device"] == [2, 8] and found["values"] == 0
    assert found["again, after clearing"] == TURNED
    assert found["from replicated"] == ["{replicated}", BOTH]


def test_pending_results_take_further_constraints(report: Any, refused: Any) -> None:
    found = report("marking.pending_results")
    assert found["texts"] == [ROWS, ROWS, BY_Y] and found["pending"], "nothing ran"
    assert found["after sync"] == [BY_Y, False, [4, 8]] and found["values"] == 0
    assert refused(found["otherwise"], "RuntimeError", BY_Y, ROWS)


def test_views(report: Any) -> None:
    found = report("marking.views")
    assert found["before"] == "" and found["marked"] == found["written"] == [BY_Y, BOTH]
    assert found["values"] == 0 and found["cleared"] == ["", BOTH]


def test_what_a_mark_survives(report: Any) -> None:
    found = report("marking.survival")
    assert found["texts"] == dict.fromkeys(["clone", "deepcopy", "copy", "detach"], BOTH)
    assert found["in place"] == [BOTH, [2, 4], 5.0, 18.0]
    assert found["cleared copy"] == ["", BOTH] and found["of a result"] == ""


def test_modules(report: Any) -> None:
    found = report("marking.modules")
    assert found["parameter"] == [True, True, BOTH]
    assert found["state_dict"] == {"weight": BOTH, "bias": ""}
    assert found["loaded"] == [BOTH, 0.0] and found["deepcopy"] == [BOTH, True, True]
    text, error, shape = found["trained"]
    assert (text, shape) == (BOTH, [2, 4]) and error < 1e-4
    assert found["saved"] == [0.0, BOTH, [2, 4]], "the file has the whole tensor, the devices their shards"


def test_other_data_of_a_marked_tensor(report: Any) -> None:
    """As upstream, the sharding stays with the tensor whose data is set."""
    found = report("marking.other_data")
    assert found["tensor"] == found["parameter"] == found["wrapper"] == [BOTH, [2, 4], 0.0]
    assert found["shared"] == [BOTH, [2, 4], BOTH, 0.0] and found["set_"] == [BOTH, [2, 4]]
    assert found["a view"] == [BOTH, "", [2, 4], 0.0]
    assert found["has its own"] == [BY_Y, BY_Y] and found["another shape"] == ["", [4, 8]]
    assert found["plain"] == "" and found["another dtype"] == BOTH


def test_modules_keep_their_marks(report: Any) -> None:
    found = report("marking.written_modules")
    assert found["load_state_dict"] == found["copy_"] == [BOTH, [2, 4], 0.0]
    assert found["cast"] == [BOTH, [2, 4]] and found["assigned"] == "", "assign=True gives the module other parameters"


def test_mark_sharding(report: Any) -> None:
    found = report("marking.w19_mark_sharding")
    assert found["texts"] == [ROWS, "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"]
    assert found["error"] < 1e-5


def test_clear_sharding(report: Any) -> None:
    found = report("marking.w22_clear_sharding")
    assert found["texts"] == ["{devices=[8,1]0,1,2,3,4,5,6,7}", "", ""]
    assert found["same"] and found["device"] == "xla:0" and found["again"]
