import io
import json
import os

from api.api.calls import get_call, send_call
from api.api.files import read_file
from api.api.lanes import list_lanes
from api.api.sessions import export_session, follow_session, get_session, import_session, new_session
from api.client import AuthenticatedClient
from api.models import CallRequest, CallState, LaneList, NewSession, Problem
from api.types import File

client = AuthenticatedClient(os.environ["TOOLFLEET_URL"], os.environ["TOOLFLEET_TOKEN"], timeout=60)
session = "python"

begun = new_session.sync(client=client, body=NewSession(prompt="Work.", session_id=session))
assert isinstance(begun, CallState) and begun.session_id == session, begun

stream = follow_session.sync_detailed(session, client=client, until_turn_ended=True)
assert stream.status_code == 200, stream
events = [json.loads(line.removeprefix(b"data: ")) for line in stream.content.split(b"\n") if line.startswith(b"data: ")]
assert events[-1]["type"] == "turn_ended", events[-1]
assert any(event["type"] == "tool_result" and event["status"] == "ok" for event in events)

turn = get_call.sync(session, begun.call_id, client=client, wait_ms=30_000)
assert isinstance(turn, CallState) and turn.result.text == "Done.", turn

sent = send_call.sync(client=client, body=CallRequest(tool="bash", arguments={"command": "echo more >>made.txt; echo hi"}, session_id=session))
assert isinstance(sent, CallState), sent
ended = get_call.sync(session, sent.call_id, client=client, wait_ms=30_000)
assert isinstance(ended, CallState) and ended.state == "ended" and ended.result.text == "hi\n", ended

file = read_file.sync(session, client=client, path="made.txt")
assert isinstance(file, File) and file.payload.read() == b"by the modelmore\n", file

exported = export_session.sync(session, client=client)
assert isinstance(exported, bytes), exported
import_session.sync("python-copy", client=client, body=File(payload=io.BytesIO(exported)))
assert not isinstance(get_session.sync("python-copy", client=client), Problem)

lanes = list_lanes.sync(client=client)
assert isinstance(lanes, LaneList) and isinstance(lanes.lanes, list), lanes

none = get_session.sync("none", client=client)
assert isinstance(none, Problem) and none.code == "not_found", none
unknown = send_call.sync(client=client, body=CallRequest(tool="nosuch"))
assert isinstance(unknown, Problem) and unknown.code == "unknown_tool", unknown
print("openapi-python-client: the scenario ran")
