"""Every private name of jax that this package uses still does what it is used for: after an upgrade, look here first."""

from __future__ import annotations

import pytest

from xla_distributed._compat import CLUSTERS

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
    for one in CLUSTERS:
        assert not CLUSTERS[one].is_env_present()
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    cluster = CLUSTERS[name]
    assert cluster.is_env_present()
    assert (cluster.get_process_count(), cluster.get_process_id(), cluster.get_local_process_id()) == (4, 3, 1)
    assert cluster.get_coordinator_address(timeout_secs=1, override_coordinator_port=None) == address


def test_a_manager_of_one_process_for_each_host_says_no_local_number() -> None:
    assert [CLUSTERS[name].get_local_process_id() for name in ("Kubernetes", "Cloud TPU", "Cloud TPU on GKE")] == [None] * 3


def test_jax_knows_no_other_manager() -> None:
    """One that jax asks by itself and this package does not should be added to the table."""
    by_jax = next(iter(CLUSTERS.values())).__mro__[1]._cluster_types
    own = [kind for kind in by_jax if kind.name and not kind.opt_in_only_method and kind.name != "tpu"]
    assert {*own, CLUSTERS["Kubernetes"]} == set(CLUSTERS.values())
