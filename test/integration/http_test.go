package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// described is an operation of docs/openapi.json.
type described struct {
	ID         string `json:"operationId"` //nolint:tagliatelle // as OpenAPI names it
	Parameters []struct {
		Name, In string
		Required bool
		Example  any
	}
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Example json.RawMessage }
	} `json:"requestBody"` //nolint:tagliatelle // as OpenAPI names it
	Responses map[string]struct {
		Content map[string]any
	}

	method, path string
}

// first and last are the operations that the others need, and those that end what they need.
var (
	first = []string{"new-session", "list-questions", "approve-call", "send-call", "send-calls", "fork-session", "set-limit", "add-schedule", "add-template", "add-webhook"}
	last  = []string{
		"remove-file", "skip-call", "kill-lane", "merge-session", "restore-session", "revert-session", "compact-session", "cancel-call", "cancel-session",
		"remove-limit", "remove-schedule", "remove-template", "remove-session", "test-webhook", "remove-webhook",
	}
	// refused are examples of what this test does not make.
	refused = map[string]int{"answer-question": http.StatusNotFound, "resolve-call": http.StatusNotFound, "remove-token": http.StatusNotFound}
)

// TestHTTP_ExamplesOfTheDescription sends the example of each operation in docs/openapi.json: the
// answer has the status, the type and the schema that the description says.
func TestHTTP_ExamplesOfTheDescription(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "openapi.json"))
	require.NoError(t, err)
	var description struct {
		Paths map[string]map[string]*described
	}
	require.NoError(t, json.Unmarshal(text, &description))
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	schemas := jsonschema.NewCompiler()
	require.NoError(t, schemas.AddResource("openapi.json", document))
	operations := map[string]*described{}
	for path, methods := range description.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			operations[op.ID] = op
		}
	}
	model := script(t, say("I look.", use("c1", "list", object{})), say("Done."), say("Done."), say("Done."))
	api := startHTTP(t, "--model", model, "--ask-for", "list")
	order := slices.Concat(first, slices.DeleteFunc(slices.Sorted(maps.Keys(operations)), func(id string) bool {
		return slices.Contains(first, id) || slices.Contains(last, id)
	}), last)
	for _, id := range order {
		require.Contains(t, operations, id)
		status, kind, answer := example(t, api, operations[id])
		assert.Contains(t, operations[id].Responses, status, id)
		checkAnswer(t, schemas, operations[id], status, kind, answer)
	}
}

// example sends the request of an operation that its examples make.
func example(t *testing.T, api httpAPI, op *described) (status, kind string, answer []byte) {
	t.Helper()
	path, query, header := op.path, url.Values{}, http.Header{}
	for _, p := range op.Parameters {
		value := fmt.Sprint(p.Example)
		switch {
		case p.Example == nil:
			require.False(t, p.Required, "%s: the parameter %s has no example", op.ID, p.Name)
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query":
			query.Set(p.Name, value)
		default:
			header.Set(p.Name, value)
		}
	}
	var body []byte
	for kind, of := range op.RequestBody.Content {
		header.Set("Content-Type", kind)
		if body = of.Example; kind != "application/json" && body != nil {
			var plain string
			require.NoError(t, json.Unmarshal(of.Example, &plain), op.ID)
			body = []byte(plain)
		}
		require.False(t, op.RequestBody.Required && body == nil && op.ID != "unpack-archive", "%s: the body has no example", op.ID)
	}
	switch op.ID {
	case "unpack-archive":
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		require.NoError(t, errors.Join(w.WriteHeader(&tar.Header{Name: "empty", Mode: 0o644, Typeflag: tar.TypeReg}), w.Close()))
		body = archive.Bytes()
	case "remove-webhook", "resume-webhook", "test-webhook", "list-failed-events":
		path = strings.Replace(path, "wh1", firstWebhook(t, api), 1)
	case "approve-call":
		body = bytes.Replace(body, []byte("c4"), []byte(waiting(t, api)), 1)
	case "skip-call":
		for _, id := range []string{"runs", "waits"} {
			sent := object{"tool": "bash", "arguments": object{"command": "sleep 600"}, "session_id": "s1"}
			code, answer, _, err := api.send(t.Context(), http.MethodPost, "/v1/calls", bytes.NewReader(encode(t, sent)),
				http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {id}})
			require.NoError(t, err)
			require.Equal(t, http.StatusAccepted, code, "%s", answer)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	code, answer, kind, err := api.send(ctx, op.method, path+"?"+query.Encode(), bytes.NewReader(body), header)
	require.NoError(t, err, op.ID)
	t.Logf("%s: %s %s?%s: %d %.200s", op.ID, op.method, path, query.Encode(), code, answer)
	if want := refused[op.ID]; want != 0 {
		assert.Equal(t, want, code, op.ID)
	} else {
		assert.Less(t, code, 300, "%s: %s", op.ID, answer)
	}
	return fmt.Sprint(code), kind, answer
}

// firstWebhook is the id of a webhook, which the server makes.
func firstWebhook(t *testing.T, api httpAPI) string {
	t.Helper()
	_, answer, _, err := api.send(t.Context(), http.MethodGet, "/v1/webhooks", http.NoBody, http.Header{})
	require.NoError(t, err)
	var list struct {
		Webhooks []struct {
			ID string `json:"webhook_id"`
		}
	}
	require.NoError(t, json.Unmarshal(answer, &list))
	require.NotEmpty(t, list.Webhooks)
	return list.Webhooks[0].ID
}

// waiting waits for a call that needs an approval.
func waiting(t *testing.T, api httpAPI) (id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, answer, _, err := api.send(t.Context(), http.MethodGet, "/v1/questions", http.NoBody, http.Header{})
		var list struct {
			Questions []struct {
				ID string `json:"call_id"`
			}
		}
		if err != nil || json.Unmarshal(answer, &list) != nil || len(list.Questions) == 0 {
			return false
		}
		id = list.Questions[0].ID
		return true
	}, 2*time.Minute, 50*time.Millisecond)
	return id
}

// checkAnswer compares an answer with its schema.
func checkAnswer(t *testing.T, schemas *jsonschema.Compiler, op *described, status, kind string, answer []byte) {
	t.Helper()
	if refused[op.ID] != 0 {
		checkSchema(t, schemas, "/components/schemas/Problem", op.ID, answer)
		return
	}
	content := op.Responses[status].Content
	if len(content) == 0 {
		require.Empty(t, answer, op.ID)
		return
	}
	assert.Contains(t, content, kind, op.ID)
	switch kind {
	case "application/json":
		escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
		checkSchema(t, schemas, "/paths/"+escape.Replace(op.path)+"/"+strings.ToLower(op.method)+"/responses/"+status+"/content/application~1json/schema", op.ID, answer)
	case "text/event-stream":
		types := map[string]string{"event": "Event", "output": "OutputPiece", "state": "CallState", "lost": "Lost", "end": "Problem"}
		seen := ""
		for line := range strings.Lines(string(answer)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch name {
			case "event":
				require.Contains(t, types, value)
				seen = value
			case "data":
				checkSchema(t, schemas, "/components/schemas/"+types[seen], op.ID, []byte(value))
			}
		}
		require.NotEmpty(t, seen, op.ID)
	}
}

func checkSchema(t *testing.T, schemas *jsonschema.Compiler, at, id string, answer []byte) {
	t.Helper()
	schema, err := schemas.Compile("openapi.json#" + at)
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(answer))
	require.NoError(t, err, "%s: %s", id, answer)
	assert.NoError(t, schema.Validate(value), "%s: %s", id, answer)
}
