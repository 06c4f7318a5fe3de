"""Files that are replaced whole: a reader, also after a crash, finds the old contents or the new, never a part.

    >>> import pathlib, tempfile
    >>> from xla_core.abi.files import atomic_write, atomic_write_bytes
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> atomic_write_bytes(folder / "report", b"whole")
    >>> with atomic_write(folder / "report") as temporary:
    ...     _ = temporary.write_text("other")
    >>> (folder / "report").read_text(), len(list(folder.iterdir()))
    ('other', 1)

* `atomic_write` gives the path of a temporary file in the same folder, and renames it at the end; if something was raised, it is removed
  and the old file stays. `atomic_write_bytes` does so with bytes at hand.
* `durable` waits until contents and name are on disk, as `sync_file` and `sync_folder` do apart, for what must survive a crash of the
  machine.
* `name_errors` gives the system's errors the name of the file where they have none, as writes to a full disk have.

Guarantees: no temporary file is left by an exception; a process that is killed may leave one, whose name begins with a dot.
"""

from __future__ import annotations

from xla_core.files import atomic_write, atomic_write_bytes, name_errors, sync_file, sync_folder

__all__ = ["atomic_write", "atomic_write_bytes", "name_errors", "sync_file", "sync_folder"]
