"""torch.distributed.tensor in SPMD mode: meshes and their slices, tensors, gradients; a model parallelized by torch's own code."""

from __future__ import annotations

from typing import Any

import pytest

ROWS_OVER_TP = "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"
COLUMNS_OVER_TP = "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"


def test_spmd_mode_begins_with_the_decorated_function(report: Any) -> None:
    assert report("dtensor.before")["mode"][1:] == [True, [1]]


def test_both_meshes_answer_alike(report: Any) -> None:
    found = report("dtensor.meshes")
    for kind in ("torch's", "ours"):
        assert found[kind] == [
            [2, [2, 4], 8, 4, [[0, 1, 2, 3], [4, 5, 6, 7]], ["dp", "tp"], "xla"],
            [0, [0, 0], 0, 0],
            [[0, 1, 2, 3], [4], [0, 4], True, 0],
            [1, 0, 2],
        ]
    assert found["flat"] == [[0, 2, 4, 6], list(range(8)), [0, 1]] and found["copies"] == [True, True]


def test_what_meshes_refuse(report: Any, refused: Any) -> None:
    rank, group, none, unnamed, sharded, no_mesh = report("dtensor.meshes")["refused"]
    assert refused(rank, "RuntimeError", "get_local_rank", "2 axes") and refused(group, "RuntimeError", "get_group")
    assert refused(none, "LookupError", "none") and refused(unnamed, "RuntimeError", "mesh_dim_names")
    assert refused(sharded, "RuntimeError", "SpmdFullyShardedDataParallel") and refused(no_mesh, "ValueError", "list")


def test_a_slice_is_some_axes_of_the_whole(report: Any) -> None:
    found = report("dtensor.slices")
    assert found["one axis"] == [ROWS_OVER_TP, True, True, 0.0] and found["ours"] == [COLUMNS_OVER_TP, True, True, 0.0]
    assert found["two of three"] == ["{devices=[2,2,2]0,4,2,6,1,5,3,7 last_tile_dim_replicate}", True, True, 0.0]
    assert found["flat"] == ["{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", True, True, 0.0]
    assert found["marked"] == [ROWS_OVER_TP] * 5


def test_a_slice_says_nothing_about_other_axes(report: Any) -> None:
    found = report("dtensor.slices")
    assert found["kept"] == ["{devices=[2,1,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", "(Replicate(),)", 0.0]
    assert found["added"] == ["{devices=[2,1,4]0,1,2,3,4,5,6,7}", "(Shard(dim=2),)", 0.0]
    assert found["pending"] == ["(Shard(dim=1),)", True, 0.0]


def test_tensors_move_and_are_gathered(report: Any) -> None:
    found = report("dtensor.tensors")
    assert found["local"] == ["XLATensor", 0.0, 0.0, "{replicated}"] and found["independent"] == 0.0
    assert found["marked again"] == [False, True, "(Replicate(), Shard(dim=0))"]
    assert found["moved"] == ["(Replicate(), Shard(dim=1))", 0.0, True]
    assert found["results"] == ["(Replicate(), Shard(dim=1))", "(Replicate(), Replicate())", 0.0, True]
    strided = "{devices=[8,1]0,4,1,5,2,6,3,7}"
    assert found["strided"] == [strided, "(_StridedShard(dim=0, sf=4), Shard(dim=0))", strided]
    assert found["no dispatch"] == ["XLATensor", "XLAShardedTensor"]


def test_factories(report: Any) -> None:
    found = report("dtensor.tensors")
    placements = ["(Shard(dim=0), Replicate())", "(Replicate(), Replicate())", "(Replicate(), Shard(dim=1))"]
    assert [one[0] for one in found["made"]] == placements and [one[2] for one in found["made"]] == [0.0] * 3
    assert [one[1] for one in found["made"]] == ["torch.float32", "torch.float64", "torch.int64"]
    assert found["leaf"] == [True, True] and found["drawn"] == 0.0


def test_what_tensors_refuse(report: Any, refused: Any) -> None:
    partial, shape, nowhere, strided = report("dtensor.tensors")["refused"]
    assert refused(partial, "ValueError", "only Shard and Replicate", "axis 0")
    assert refused(shape, "ValueError", "(20, 7)", "(10, 7)") and refused(nowhere, "RuntimeError", "placements")
    assert refused(strided, "ValueError", "later mesh axes", "[4]")


def test_gradients(report: Any) -> None:
    found = report("dtensor.gradients")
    assert [found[f"{name} {where}"] for name in ("cpu", "xla") for where in ("whole", "slice")] == [[True] * 4] * 4
    assert found["dtypes"] == ["torch.bfloat16", "torch.float32", 0.0]


def test_output_functions_get_placements(report: Any) -> None:
    assert report("dtensor.output_functions")["output"] == [True, [["(Replicate(), Replicate())", True]]]


def test_local_map_sees_one_devices_shards(report: Any, refused: Any) -> None:
    found = report("dtensor.local_maps")
    assert found["product"] == ["(Replicate(), Replicate())", True, True, True] and found["plain"] == [2.0, 2.0]
    assert found["softmax"] == [True, 3, "(Shard(dim=0),)"]
    placed, uneven = found["refused"]
    assert refused(placed, "ValueError", "redistribute_inputs") and refused(uneven, "ValueError", "divisible by 4")


def test_a_model_that_torch_parallelizes_trains_as_on_the_cpu(report: Any) -> None:
    found = report("dtensor.gpt")
    mine, theirs = found["losses"]
    assert mine == pytest.approx(theirs, rel=1e-3) and found["state"] < 1e-3
    assert found["weight"] == [ROWS_OVER_TP, "(Shard(dim=0),)", True, True]
    assert found["twin"] == ["(Shard(dim=0),)", True]
    assert found["autocast"] == "torch.bfloat16"
