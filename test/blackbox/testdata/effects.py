"""A tool in Python that writes down when a call begins and ends; see package blackbox."""

import os
import time
import uuid

from toolfleet import tool


@tool()
def effect(id: str, sandbox: str, during: int, sleep_ms: int) -> str:
    """Writes down when it begins and ends."""
    run = uuid.uuid4().hex

    def say(what: str) -> None:
        file = os.open("effects", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(file, f"{what} {id} {run}\n".encode())
        os.close(file)

    say("begin")
    for _ in range(during):
        time.sleep(0.03)
        say("during")
    time.sleep(sleep_ms / 1000)
    say("end")
    return "done"
