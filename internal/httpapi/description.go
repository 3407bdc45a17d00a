package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// groups say what the operations with a tag are about.
var groups = map[string]string{ //nolint:gochecknoglobals // a constant
	"Calls":     "A call runs a tool on a worker. Once a request is answered the call is stored, and ends even if the server does not last.",
	"Sessions":  "A session is a conversation with a model, its calls, and the files of its workspace. A turn is a call, too.",
	"Files":     "Files of a session's workspace, now or as they were after a call.",
	"Workers":   "Workers run calls. A pool is a group of workers.",
	"Lanes":     "Calls on one resource form a lane, and run one after another. Only the fleet's operator reads and changes lanes.",
	"Limits":    "Limits of lanes, tenants and pools. Only the fleet's operator changes them.",
	"Schedules": "A schedule starts a turn or a call at set times.",
	"Tokens":    "Tokens of clients count at each server of the fleet. Only the fleet's operator makes them.",
	"Templates": "Files with which workspaces begin.",
	"Webhooks":  "A webhook is a server that is notified of what ends, or waits for a person. It needs the role operate.",
}

// refusals say what an answer with a status means, and which codes it has.
var refusals = map[int]string{ //nolint:gochecknoglobals // a constant
	http.StatusBadRequest:                   "`invalid`: the request cannot be read.",
	http.StatusUnauthorized:                 "`unauthorized`: there is no token, or it is unknown, has expired or was removed.",
	http.StatusForbidden:                    "`forbidden`: the principal may not do this. `policy_denied`: a policy denies the call.",
	http.StatusNotFound:                     "`not_found`: there is no such object, or it belongs to another tenant.",
	http.StatusRequestTimeout:               "`invalid`: the body came too slowly.",
	http.StatusConflict:                     "`exists`: there is one already. `busy`: the session has an open turn, or something has not ended within a minute.",
	http.StatusRequestEntityTooLarge:        "`invalid`: the body is too large.",
	http.StatusUnsupportedMediaType:         "`invalid`: the body has another type.",
	http.StatusRequestedRangeNotSatisfiable: "`invalid`: the file has no such bytes.",
	http.StatusUnprocessableEntity:          "`invalid`, with the fields in `errors`, or the code of the call that was refused.",
	http.StatusTooManyRequests:              "`busy`, `quota_exceeded`: the fleet, or this client, has as much as it may. Retry-After says when to ask again.",
	http.StatusInternalServerError:          "`internal`: an error of the server.",
	http.StatusServiceUnavailable:           "`unreachable`: the fleet does not answer, or a token cannot be checked now. `draining`: the server ends.",
}

// sent are examples of parameters: by their name, or by the operation and their name.
var sent = map[string]any{ //nolint:gochecknoglobals // a constant
	"session": "s1", "call": "c1", "lane": "sandbox/s1", "wait_ms": 30000, "path": "report.md", "words": "report", "until_turn_ended": true,
	"send-call.Idempotency-Key": "c1", "new-session.Idempotency-Key": "t1", "send-turn.Idempotency-Key": "t2", "skip-call.call": "waits",
	"name": "nightly", "remove-template.name": "reports", "compare-sessions.other": "fork", "remove-limit.tenant": "acme",
	"remove-limit.lane": nil, "import-session.session": "copy", "remove-token.token": "k3v9q2ma",
	"get-turn-trace.turn": "last", "unpack-archive.path": "src", "write-file.mode": "0644",
	"webhook": "wh1", "test-webhook.wait_ms": 1000,
}

// bodies are examples of what operations are sent.
var bodies = map[string]string{ //nolint:gochecknoglobals,gosec // a constant, without a secret
	"send-call":       `{"tool": "write", "arguments": {"path": "report.md", "content": "# Report\n"}, "session_id": "s1"}`,
	"send-calls":      `{"calls": [{"tool": "bash", "arguments": {"command": "wc -l report.md"}, "session_id": "s1", "call_id": "c2"}, {"tool": "bash", "arguments": {"command": "echo more >>report.md"}, "session_id": "s1", "call_id": "c3"}]}`,
	"new-session":     `{"prompt": "Write a report.", "session_id": "s1"}`,
	"send-turn":       `{"prompt": "Make it shorter.", "max_steps": 20}`,
	"fork-session":    `{"call_id": "c1", "session_id": "fork"}`,
	"merge-session":   `{"fork": "fork"}`,
	"restore-session": `{"call_id": "c1"}`,
	"revert-session":  `{"call_id": "c1"}`,
	"import-session": `{"type": "session_export", "version": 1}` + "\n" +
		`{"type": "turn_started", "turn": 1, "input": "Hello", "time": "2026-01-02T03:04:05Z"}` + "\n" +
		`{"type": "turn_ended", "turn": 1, "text": "Hi", "time": "2026-01-02T03:04:05Z"}` + "\n",
	"approve-call":    `{"call_id": "c4", "granted": true, "note": "Only this time."}`,
	"answer-question": `{"call_id": "c5", "action": "accept", "content": {"name": "Ann"}}`,
	"resolve-call":    `{"call_id": "c6", "happened": false}`,
	"write-file":      "# Report\n",
	"set-limit":       `{"tenant": "acme", "concurrent": 2}`,
	"add-schedule":    `{"name": "nightly", "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "session_id": "s1", "turn": {"prompt": "Write a report."}}`,
	"add-token":       `{"name": "ann", "role": "run", "tenant": "acme"}`,
	"add-webhook":     `{"url": "https://hooks.example.com/toolfleet", "events": ["turn.ended", "approval.waiting"]}`,
	"add-template":    `{"name": "reports", "session_id": "s1"}`,
}

// links say which operations take what an answer names.
var links = map[string][]string{ //nolint:gochecknoglobals // a constant
	"send-call":    {"get-call", "follow-call", "cancel-call"},
	"new-session":  {"get-call", "get-session", "follow-session", "send-turn", "list-files", "export-session"},
	"send-turn":    {"get-call", "follow-call", "cancel-call"},
	"fork-session": {"get-session", "list-files", "remove-session"},
}

// describe completes the description for those who read it, and for the programs that make clients
// and tests of it.
func describe(api *huma.OpenAPI) {
	used := map[string]bool{}
	if api.Components.Responses == nil {
		api.Components.Responses = map[string]*huma.Response{}
	}
	for _, path := range api.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete} {
			if op != nil {
				used[op.Tags[0]] = true
				describeOne(api, op)
			}
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(used)) {
		api.Tags = append(api.Tags, &huma.Tag{Name: tag, Description: groups[tag]})
	}
}

func describeOne(api *huma.OpenAPI, op *huma.Operation) {
	for status, answer := range op.Responses {
		number, _ := strconv.Atoi(status)
		if text, is := refusals[number]; is {
			answer.Description = text
			name := strings.ReplaceAll(http.StatusText(number), " ", "")
			api.Components.Responses[name] = answer
			op.Responses[status] = &huma.Response{Ref: "#/components/responses/" + name}
		} else if number < http.StatusMultipleChoices {
			answer.Links = linked(op.OperationID)
		}
	}
	for _, p := range op.Parameters {
		example, is := sent[op.OperationID+"."+p.Name]
		if p.Example = example; !is {
			p.Example = sent[p.Name]
		}
	}
	example := bodies[op.OperationID]
	if op.RequestBody == nil || example == "" {
		return
	}
	for kind, body := range op.RequestBody.Content {
		if body.Example = any(example); kind == "application/json" {
			body.Example = json.RawMessage(example)
		}
	}
}

// linked are the links of an operation, whose answer names a session and a call.
func linked(id string) map[string]*huma.Link {
	made := map[string]*huma.Link{}
	for _, to := range links[id] {
		parameters := map[string]any{"session": "$response.body#/session_id"}
		if slices.Contains([]string{"get-call", "follow-call", "cancel-call"}, to) {
			parameters["call"] = "$response.body#/call_id"
		}
		made[to] = &huma.Link{OperationID: to, Parameters: parameters}
	}
	return made
}
