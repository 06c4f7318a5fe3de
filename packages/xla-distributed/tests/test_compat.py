"""Every private name of jax and torch that this package uses still does what it is used for: after an upgrade, look here first."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

import xla_distributed
from xla_distributed._compat import after_backward, clusters, in_backward, recursive_wrap

OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "8192.0;tcp://10.0.0.1,10.1.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[3-4]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


@pytest.mark.parametrize(
    ("name", "variables", "address"), [("Open MPI", OPEN_MPI, "10.0.0.1:61442"), ("Slurm", SLURM, "node3:61447")], ids=["ompi", "slurm"]
)
def test_a_manager_says_the_place_in_the_job(name: str, variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in clusters():
        assert not clusters()[one].is_env_present()
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    cluster = clusters()[name]
    assert cluster.is_env_present()
    assert (cluster.get_process_count(), cluster.get_process_id(), cluster.get_local_process_id()) == (4, 3, 1)
    assert cluster.get_coordinator_address(timeout_secs=1, override_coordinator_port=None) == address


def test_a_manager_of_one_process_for_each_host_says_no_local_number() -> None:
    assert [clusters()[name].get_local_process_id() for name in ("Kubernetes", "Cloud TPU", "Cloud TPU on GKE")] == [None] * 3


def test_jax_knows_no_other_manager() -> None:
    """One that jax asks by itself and this package does not should be added to the table."""
    by_jax = next(iter(clusters().values())).__mro__[1]._cluster_types
    own = [kind for kind in by_jax if kind.name and not kind.opt_in_only_method and kind.name != "tpu"]
    assert {*own, clusters()["Kubernetes"]} == set(clusters().values())


RUNTIME = """
import sys
from xla_distributed._compat import join_runtime, runtime_service
service = runtime_service(sys.argv[1], 1)
import jax
join_runtime(sys.argv[1], 1, 0, 20)
print(jax.distributed.is_initialized(), jax.process_count(), jax.device_count("cpu"))
jax.distributed.shutdown()
try:
    join_runtime(sys.argv[1], 1, 0, 20)
except RuntimeError as error:
    print(error)
"""


def test_a_process_joins_a_runtime_that_process_0_need_not_serve(free_port: int) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUNTIME, f"127.0.0.1:{free_port}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True 1 1\nJAX's devices were used before"), done.stdout


def test_the_coordinator_of_a_job_loads_neither_torch_nor_jax() -> None:
    """It is one more process of every job: it starts in a fraction of a second, and takes 100 MB."""
    from xla_distributed.job import coordinator

    program = coordinator._PROGRAM.replace("serve()", "from xla_distributed import _compat; import jaxlib._jax; print(*sys.modules)")
    folder = os.path.dirname(xla_distributed.__file__)
    done = subprocess.run([sys.executable, "-P", "-c", program, folder], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "jax", "xla_core"} & set(done.stdout.split()) and "xla_distributed.job.server" in done.stdout


def test_torch_wraps_as_a_policy_says() -> None:
    made: list[nn.Module] = []

    def wrap(module: nn.Module) -> nn.Module:
        made.append(module)
        return nn.Sequential(module)

    module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    policy = lambda_auto_wrap_policy
    wrapped, count = recursive_wrap(module, partial(policy, lambda_fn=lambda each: isinstance(each, nn.Linear)), wrap, set(), set(), True)
    assert wrapped is module and count == 6 and len(made) == 1 and module[0][0] is made[0]


def test_backward_is_known_and_says_when_it_is_over() -> None:
    """Also what is asked for at the end is done."""
    said: list[str] = []

    def hook(gradient: torch.Tensor) -> None:
        said.append(f"inside {in_backward()}")
        after_backward(lambda: (said.append("end"), after_backward(lambda: said.append("very end"))))  # type: ignore[arg-type, return-value]

    weight = torch.ones(2, requires_grad=True)
    result = weight * 2
    result.register_hook(hook)
    assert not in_backward()
    weight.register_post_accumulate_grad_hook(lambda _: said.append("weight"))
    result.sum().backward()
    assert said == ["inside True", "weight", "end", "very end"] and not in_backward()


def test_device_meshes_are_special_only_where_there_is_no_process_group() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor

    import torch_xla.distributed.xla_backend  # noqa: F401

    assert not hasattr(DeviceMesh("xla", [0]), "_dim_group_names")
    with pytest.raises(RuntimeError, match="SPMD mode"):
        distribute_tensor(torch.ones(2), DeviceMesh("xla", [0]), [Shard(0)])
    dist.init_process_group("xla", init_method="xla://")
    try:
        mesh = init_device_mesh("xla", (1,))
        assert mesh.get_group().size() == 1 and mesh.get_coordinate() == (0,)
        net = distribute_module(nn.Linear(3, 2), mesh)
        assert isinstance(net.weight, DTensor) and net.weight.device.type == "xla"
        x = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        net(x).sum().backward()  # linear and its gradient are handled as DTensor operations
        assert x.to_local().device.type == "xla" and net.weight.grad is not None
        assert net.weight.grad.full_tensor().tolist() == [[4.0] * 3] * 2
        _check_data_parallel()
        _check_staging(net.weight)
    finally:
        dist.destroy_process_group()


def _check_data_parallel() -> None:
    """Flags of used parameters are on the host, and bfloat16 may be sent."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    net = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).to("xla")
    net.forward = lambda x: net[0](x)  # type: ignore[method-assign, assignment]
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        model = nn.parallel.DistributedDataParallel(net, **options)
        model.register_comm_hook(None, bf16_compress_hook)
        net.zero_grad()
        model(torch.ones(4, 3, device="xla")).sum().backward()
        assert net[0].weight.grad is not None and net[0].weight.grad.tolist() == [[4.0] * 3] * 2


def _check_staging(weight: torch.Tensor) -> None:
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    staged = StateDictStager().stage({"plain": torch.ones(2, device="xla"), "sharded": weight.detach()})
    assert staged["plain"].device.type == "cpu" and staged["plain"].tolist() == [1.0, 1.0]
    assert staged["sharded"].to_local().device.type == "cpu"
