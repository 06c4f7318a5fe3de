"""Processes that answer a line with a line of JSON: one that ends or hangs costs one item, and a fresh one goes on."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any, TypeVar

Answer = dict[str, Any]
_Item = TypeVar("_Item")


class NoAnswer(Exception):
    """A process gave no answer. code: with which it ended; None if it was not done in time, and was killed."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class Process:
    """A process and its pipes. asked: how many lines it got. errors: where its stderr goes. Processes that it starts end with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], errors: int | IO[bytes] = subprocess.DEVNULL) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, process_group=0
        )
        self.asked = 0

    def ask(self, line: str, limit_s: float) -> Answer:
        """The answer to a line. Raises NoAnswer."""
        if self._process.stdin is None:
            raise RuntimeError("a process that is asked needs pipes")
        self.asked += 1
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NoAnswer(self._process.wait()) from None
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> Answer:
        """The next line that it says, of itself or asked. Raises NoAnswer."""
        pipe = self._process.stdout
        if pipe is None:
            raise RuntimeError("a process that is asked needs pipes")
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            if not ready.select(limit_s):
                self.kill()
                raise NoAnswer(None)
        line = pipe.readline()
        if not line:
            raise NoAnswer(self._process.wait())
        answer: Answer = json.loads(line)
        return answer

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process and those that it has started, which may outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """`kill` it, and close its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


_Asked = TypeVar("_Asked", bound=Process)


def share_out(
    items: Sequence[_Item],
    start: Callable[[], _Asked],
    ask: Callable[[_Asked, _Item], Answer],
    done: Callable[[_Item, Answer], None],
    workers: int,
    life: int,
) -> None:
    """Ask processes about items, in `workers` threads. start: makes a process, which is replaced after `life` items: compiled programs
    fill its memory. done: is called with each item and its answer, by one thread at a time.
    """
    waiting: SimpleQueue[_Item] = SimpleQueue()
    for item in items:
        waiting.put(item)
    lock = threading.Lock()
    failed: list[BaseException] = []
    started: list[_Asked] = []

    def serve() -> None:
        process: _Asked | None = None
        try:
            while not failed:
                try:
                    item = waiting.get_nowait()
                except Empty:
                    break
                if process is None or not process.alive or process.asked >= life:
                    if process is not None:
                        process.stop()
                    process = start()
                    started.append(process)
                answer = ask(process, item)
                with lock:
                    if not failed:
                        done(item, answer)
        except BaseException as error:  # raised below, in the caller's thread
            failed.append(error)
        finally:
            if process is not None:
                process.stop()

    threads = [threading.Thread(target=serve) for _ in range(min(workers, len(items)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C, which processes in groups of their own do not hear
        failed.append(error)
        for process in started:
            if process.alive:
                process.kill()
        raise
    if failed:
        raise failed[0]
