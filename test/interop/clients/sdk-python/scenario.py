import os

from toolfleet import APIError, Client, Event, NotFound

session = "sdk-python"

with Client(os.environ["TOOLFLEET_URL"], os.environ["TOOLFLEET_TOKEN"]) as client:
    begun = client.new_session("Work.", id=session)
    assert begun.id == session, begun

    events = [message for message in begun.events(until_turn_ended=True) if isinstance(message, Event)]
    assert events[-1].type == "turn_ended", events[-1]
    assert any(event.type == "tool_result" and event.data["status"] == "ok" for event in events)

    assert begun.turn and begun.turn.wait(timeout=30).text == "Done."

    ended = client.send("bash", {"command": "echo more >>made.txt; echo hi"}, session_id=session).wait(timeout=30)
    assert ended.ok and ended.text == "hi\n", ended

    assert begun.read_file("made.txt") == b"by the modelmore\n"

    copied = client.import_session(f"{session}-copy", begun.export())
    assert copied.get()["session_id"] == f"{session}-copy"

    assert isinstance(client.lanes()["lanes"], list)

    try:
        client.session("none").get()
        raise AssertionError("it is found")
    except NotFound as error:
        assert error.code == "not_found", error
    try:
        client.call("nosuch")
        raise AssertionError("it ran")
    except APIError as error:
        assert error.code == "unknown_tool", error
print("sdk/python: the scenario ran")
