"""Keep only the checkpoints that still carry a tag, such as `best` or `last`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Iterable


def _remove(path: str) -> None:
    """Delete a checkpoint, be it a file or a folder; one that is gone already is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


class CheckpointTagger:
    """A tag points to one checkpoint; a checkpoint that loses its last tag is removed.

    remover: called with the path of such a checkpoint; None deletes the file or folder.
    """

    def __init__(self, remover: Callable[[str], object] | None = None) -> None:
        self._remover = _remove if remover is None else remover
        self._path_of: dict[Hashable, str] = {}

    def add(self, path: str, tags: Iterable[Hashable]) -> None:
        """Point each of `tags` to `path`, away from the checkpoint it pointed to. Raises: ValueError without tags."""
        unique_tags = tuple(dict.fromkeys([tags] if isinstance(tags, str) else tags))
        if not unique_tags:
            raise ValueError(f"checkpoint {path} needs at least one tag, or nothing would keep it")
        previous_paths = [self._path_of[tag] for tag in unique_tags if tag in self._path_of]
        self._path_of.update(dict.fromkeys(unique_tags, path))
        self._sweep(previous_paths)

    def remove_tag(self, tag: Hashable) -> None:
        """Drop a tag. Raises: KeyError if nothing carries it."""
        self._sweep([self._path_of.pop(tag)])

    def path(self, tag: Hashable) -> str | None:
        """The checkpoint that carries `tag`."""
        return self._path_of.get(tag)

    def tags(self, path: str) -> tuple[Hashable, ...]:
        """Tags of a checkpoint, oldest first."""
        return tuple(tag for tag, tagged in self._path_of.items() if tagged == path)

    def paths(self) -> tuple[str, ...]:
        """All checkpoints that are kept."""
        return tuple(dict.fromkeys(self._path_of.values()))

    def _sweep(self, candidates: Iterable[str]) -> None:
        kept = set(self._path_of.values())
        for path in dict.fromkeys(candidates):
            if path not in kept:
                self._remover(path)
