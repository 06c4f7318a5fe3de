"""The public names of this package, which `xla_serialization` imports on first use."""

from xla_serialization.checkpoint.in_place import load_into as load_into
from xla_serialization.checkpoint.loading import Checkpoint as Checkpoint
from xla_serialization.checkpoint.loading import load as load
from xla_serialization.checkpoint.saving import save as save
from xla_serialization.errors import CheckpointError as CheckpointError
from xla_serialization.errors import DamagedCheckpointError as DamagedCheckpointError
from xla_serialization.errors import FailedSaveError as FailedSaveError
from xla_serialization.errors import MismatchError as MismatchError
from xla_serialization.errors import MissingCheckpointError as MissingCheckpointError
from xla_serialization.errors import NewerCheckpointError as NewerCheckpointError
from xla_serialization.errors import ReplicasDifferError as ReplicasDifferError
from xla_serialization.errors import UnsavableError as UnsavableError
from xla_serialization.format.per_process import PerProcess as PerProcess
from xla_serialization.progress import progress_bar as progress_bar
from xla_serialization.torch_formats.dcp_staging import SnapshotStager as SnapshotStager
