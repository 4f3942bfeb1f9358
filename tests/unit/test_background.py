"""The compute thread: one for all work, results and errors back on the loop, and no hold on the process."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from online_sao.background import Background


async def test_all_work_runs_in_one_thread_in_order():
    background = Background()
    done: list[int] = []

    def work(number: int) -> int:
        time.sleep(0.01 * (3 - number))
        done.append(number)
        return threading.get_ident()

    threads = await asyncio.gather(*(background.run(lambda n=n: work(n)) for n in range(3)))
    assert done == [0, 1, 2]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_an_error_comes_back_and_the_thread_lives_on():
    background = Background()
    with pytest.raises(ZeroDivisionError):
        await background.run(lambda: 1 // 0)
    assert await background.run(lambda: 7) == 7


async def test_a_cancelled_caller_leaves_the_work_running():
    background, finished = Background(), threading.Event()
    waiting = asyncio.create_task(background.run(lambda: (time.sleep(0.1), finished.set())))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await background.run(lambda: None)
    assert finished.is_set()


async def test_what_nobody_waits_for_comes_after_what_was_asked_before():
    background, done = Background(), []
    waiting = asyncio.create_task(background.run(lambda: (time.sleep(0.05), done.append("before"))))
    await asyncio.sleep(0.01)
    waiting.cancel()
    background.then(lambda: done.append("then"))
    await background.run(lambda: None)
    assert done == ["before", "then"]


def test_a_process_ends_without_waiting_for_its_work():
    source = (
        "import asyncio, time\n"
        "from online_sao.background import Background\n"
        "async def main():\n"
        "    task = asyncio.create_task(Background().run(lambda: time.sleep(60)))\n"
        "    await asyncio.sleep(0.1)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", source], timeout=30, check=False).returncode == 0


async def test_its_thread_ends_when_what_was_asked_is_done():
    background = Background("to be ended")
    thread = next(thread for thread in threading.enumerate() if thread.name == "to be ended")
    last = asyncio.create_task(background.run(lambda: threading.current_thread().name))
    await asyncio.sleep(0)
    background.end()
    assert await last == "to be ended"
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
