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
* `lock` and `unlock` lock open files and folders against other writers, as `atomic_write` does with its temporary file; the system unlocks
  what a process that dies had locked.
* `name_errors` gives the system's errors the name of the file where they have none, as writes to a full disk have.

Guarantees: no temporary file is left by an exception. A process that is killed may leave one (`.NAME.….xla-tmp`); the next `atomic_write`
into the folder removes it, and never one that a live process writes to. A folder of more than a thousand files is looked through once by
each process. On network file systems whose locks do not reach beyond a machine, a file that another machine has left is removed when it
is a day old. Where the file system has no locks, leftovers stay.
"""

from __future__ import annotations

from xla_core.base.files import atomic_write, atomic_write_bytes, lock, name_errors, sync_file, sync_folder, unlock

__all__ = ["atomic_write", "atomic_write_bytes", "lock", "name_errors", "sync_file", "sync_folder", "unlock"]
