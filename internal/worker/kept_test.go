package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// kept reads the result of an earlier call, from a lane of its own.
func (r *rig) kept(session protocol.SessionID, read wire.ResultRead) *protocol.Result {
	r.t.Helper()
	call := newCall(session, read)
	call.Resources = []protocol.Use{{Key: protocol.ResourceKey("call/" + string(call.ID)), Access: protocol.Exclusive}}
	return r.dispatch(r.t.Context(), call)
}

// all lines of a kept result, read a few at a time.
func (r *rig) keptLines(t *testing.T, session protocol.SessionID, read wire.ResultRead) string {
	t.Helper()
	var all strings.Builder
	for read.Offset = 1; ; {
		got := r.kept(session, read)
		requireOK(t, got)
		v := value[wire.ResultReadResult](t, got)
		if v.Lines == 0 {
			require.EqualValues(t, v.Bytes, all.Len())
			return all.String()
		}
		require.Equal(t, read.Offset, v.FirstLine)
		require.LessOrEqual(t, len(v.Content), prose.MaxPage)
		all.Write(v.Content)
		if end := max(read.Column, 1) + int64(len(v.Content)); v.Lines == 1 && end <= v.LineBytes {
			read.Column = end
			continue
		}
		read.Offset, read.Column = read.Offset+v.Lines, 0
		require.LessOrEqual(t, read.Offset-1, v.TotalLines)
	}
}

func TestResultRead_EveryPartOfACommandWhetherItWasCutOrNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	for name, limits := range map[string]protocol.Limits{"not cut": {}, "cut": {Output: 4000}} {
		call := newCall(session, protocol.CommandRun{Command: "seq 1 2500; sleep 0.05; seq 3000 3999 >&2", Limits: limits})
		run := r.dispatch(t.Context(), call)
		requireOK(t, run)
		require.Equal(t, name == "cut", value[protocol.CommandRunResult](t, run).Truncated)
		var stdout, stderr strings.Builder
		for i := 1; i <= 2500; i++ {
			fmt.Fprintln(&stdout, i)
		}
		for i := 3000; i < 4000; i++ {
			fmt.Fprintln(&stderr, i)
		}
		for part, want := range map[string]string{
			wire.PartStdout: stdout.String(), wire.PartStderr: stderr.String(),
			wire.PartOutput: stdout.String() + stderr.String(), "": stdout.String() + stderr.String(),
		} {
			require.Equal(t, want, r.keptLines(t, session, wire.ResultRead{CallID: call.ID, Part: part, Limit: 999}), "%s %s", name, part)
		}
		some := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: call.ID, Offset: 2500, Limit: 2}))
		require.Equal(t, "2500\n3000\n", string(some.Content))
		require.Equal(t, []int{2500, 2, 3500}, []int{some.FirstLine, some.Lines, some.TotalLines})
		beyond := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: call.ID, Offset: 3501}))
		require.Equal(t, []int{0, 0, 3500}, []int{beyond.FirstLine, beyond.Lines, beyond.TotalLines})
	}
}

func TestResultRead_LongLinesAndLargeResultsArePaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	call := newCall(session, protocol.CommandRun{Command: `head -c 400000 /dev/zero | tr '\0' x; echo; printf 'é%.0s' $(seq 3000); printf end`})
	requireOK(t, r.dispatch(t.Context(), call))
	all := r.keptLines(t, session, wire.ResultRead{CallID: call.ID})
	require.Equal(t, strings.Repeat("x", 400_000)+"\n"+strings.Repeat("é", 3000)+"end", all)
}

func TestResultRead_ValuesAndWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	listed := newCall(session, protocol.FilesList{})
	requireOK(t, r.dispatch(t.Context(), listed))
	got := r.kept(session, wire.ResultRead{CallID: listed.ID})
	requireOK(t, got)
	v := value[wire.ResultReadResult](t, got)
	require.Equal(t, wire.PartText, v.Part)
	require.Empty(t, v.Content)
	v = value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: listed.ID, Part: wire.PartValue}))
	require.Contains(t, string(v.Content), `"type":"files_list"`)

	requireFault(t, r.kept(session, wire.ResultRead{CallID: listed.ID, Part: wire.PartStdout}), protocol.StatusRejected, protocol.CodeInvalidArguments)
	requireFault(t, r.kept(session, wire.ResultRead{CallID: listed.ID, Part: "all"}), protocol.StatusRejected, protocol.CodeInvalidArguments)
	requireFault(t, r.kept(session, wire.ResultRead{CallID: "c-none"}), protocol.StatusFailed, protocol.CodeNotFound)
	requireFault(t, r.kept(protocol.NewSessionID(), wire.ResultRead{CallID: listed.ID}), protocol.StatusFailed, protocol.CodeNotFound)
}

// An image or document that was attached is read whole, and shown as one that a tool has read.
func TestResultRead_Media(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	store := func(id protocol.CallID, data string) *protocol.Result {
		_, err := natsio.PutObject(t.Context(), r.JS, wire.KeptBucket(r.Name), wire.PartObject(session, id, wire.PartMedia), strings.NewReader(data))
		require.NoError(t, err)
		return r.kept(session, wire.ResultRead{CallID: id, Part: wire.PartMedia})
	}
	for mediaType, data := range map[string]string{"image/png": "\x89PNG\r\n\x1a\n" + strings.Repeat("\x00\n", 1<<20), "application/pdf": "%PDF-1.4\n"} {
		got := store(protocol.CallID("c-"+mediaType[:5]), data)
		requireOK(t, got)
		shown, content, ok := render.Image(got)
		require.True(t, ok)
		require.Equal(t, mediaType, shown)
		require.Equal(t, data, string(content))
		require.Contains(t, render.JSON(got), "#media, ")
	}
	_, _, ok := render.Image(store("c-text", "no image"))
	require.False(t, ok)
	requireFault(t, store("c-large", strings.Repeat("x", 4<<20+1)), protocol.StatusFailed, codes.PayloadTooLarge)
}

// keptObjects are the names of what is kept of all sessions.
func (r *rig) keptObjects(t *testing.T) []string {
	t.Helper()
	store, err := r.JS.ObjectStore(t.Context(), wire.KeptBucket(r.Name))
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	if err != nil {
		require.ErrorIs(t, err, jetstream.ErrNoObjectsFound)
	}
	var names []string
	for _, object := range objects {
		names = append(names, object.Name)
	}
	return names
}

// TestKeep_AFileThatIsReadSideBySideIsStoredOnce: objects of one name would leave parts that nobody
// finds.
func TestKeep_AFileThatIsReadSideBySideIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots = 8
	r.work(o)
	session := protocol.NewSessionID()
	content := strings.Repeat("line of text\n", 100_000)
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a", Content: []byte(content)}))
	calls := make([]protocol.Call, o.Slots)
	for i := range calls {
		calls[i] = newCall(session, protocol.FilesRead{Path: "a", Offset: 1 + i*1000, Limit: 5000})
		calls[i].Resources[0].Access = protocol.Shared
	}
	for _, got := range r.all(calls) {
		requireOK(t, got)
		require.NotNil(t, got.Kept)
	}
	read := r.kept(session, wire.ResultRead{CallID: calls[3].ID, Offset: 99_999})
	require.Equal(t, "line of text\nline of text\n", string(value[wire.ResultReadResult](t, read).Content))
	stream, err := r.JS.Stream(t.Context(), natsio.ObjectStream(wire.KeptBucket(r.Name)))
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Less(t, info.State.Bytes, uint64(2*len(content)))
}

// TestKeep_ToolsOfTheUsersOwn: what a tool returns, or why it failed, is kept when it is
// long, after its result has aged out too; and not when it is short.
func TestKeep_ToolsOfTheUsersOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	long := strings.Repeat("é", 30_000)
	quoted, err := json.Marshal(long)
	require.NoError(t, err)
	object := `{"items":["` + strings.Repeat("x", 50_000) + `"]}`
	answer := func(output string, err error) kinds.Handler {
		return func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(output), err
		}
	}
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"text": answer(string(quoted), nil), "object": answer(object, nil), "fails": answer("", errors.New(long)),
		"short": answer(`"x"`, nil), "fails_shortly": answer("", errors.New("no")),
	}
	o.Handlers.Stateful = map[protocol.Kind]kinds.Stateful{"talks": {
		Run: func(_ context.Context, talk *kinds.Talk, _ json.RawMessage) (json.RawMessage, error) {
			_, err := talk.Yield(quoted)
			return nil, err
		},
	}}
	r.work(o)
	kept := map[protocol.CallID]string{}
	session := protocol.NewSessionID()
	call := func(payload protocol.Payload) *protocol.Result {
		c := newCall(session, payload)
		c.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
		return r.dispatch(t.Context(), c)
	}
	for kind, want := range map[protocol.Kind]string{"text": long, "object": object, "fails": long, "short": "", "fails_shortly": ""} {
		payload, err := wire.NewUserPayload(kind, json.RawMessage(`{}`))
		require.NoError(t, err)
		got := call(payload)
		require.Equal(t, want != "", got.Kept != nil, kind)
		if want != "" {
			kept[got.CallID] = want
		}
	}
	got := call(wire.DialogOpen{Tool: "talks", Arguments: json.RawMessage(`{}`)})
	requireOK(t, got)
	require.NotNil(t, got.Kept)
	kept[got.CallID] = long
	program := call(protocol.ToolRun{Argv: []string{"sh", "-c", "head -c 50000 /dev/zero | tr '\\0' e >&2; exit 1"}, Arguments: json.RawMessage(`{}`)})
	require.NotNil(t, program.Kept)
	kept[program.CallID] = strings.Repeat("e", 50_000)
	require.Len(t, r.keptObjects(t), len(kept))

	stream, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	for id, want := range kept {
		require.Equal(t, want, r.keptLines(t, session, wire.ResultRead{CallID: id}))
	}
	require.Equal(t, strings.Repeat("e", 50_000), r.keptLines(t, session, wire.ResultRead{CallID: program.CallID, Part: wire.PartStderr}))
}

// TestKeep_OneCopyOfAFile: reading a file page by page keeps it once, and once more when it
// has changed; what is not cut is not kept.
func TestKeep_OneCopyOfAFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	text := strings.Repeat("a line of text\n", 50_000) // 750 kB: more than a message carries
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "f", Content: protocol.Bytes(text)}))
	var last *protocol.Result
	for _, offset := range []int{1, 10_000, 40_000} {
		last = r.do(session, protocol.FilesRead{Path: "f", Offset: offset})
		requireOK(t, last)
		require.Equal(t, &protocol.Kept{Lines: 50_000}, last.Kept)
	}
	require.Len(t, r.keptObjects(t), 1+3, "the file, and a link for each call")
	few := r.do(session, protocol.FilesRead{Path: "f", Limit: 10})
	requireOK(t, few)
	require.Nil(t, few.Kept)
	require.Equal(t, text, r.keptLines(t, session, wire.ResultRead{CallID: last.CallID}))
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "f", Content: protocol.Bytes("x" + text)}))
	requireOK(t, r.do(session, protocol.FilesRead{Path: "f"}))
	require.Len(t, r.keptObjects(t), 2+4)
	require.Equal(t, text, r.keptLines(t, session, wire.ResultRead{CallID: last.CallID}), "as it was then")

	large := filepath.Join(workspaceOf(o.Data, session), "large")
	require.NoError(t, os.WriteFile(large, []byte(strings.Repeat("0123456789abcde\n", (65<<20)/16)), 0o600))
	got := r.do(session, protocol.FilesRead{Path: "large"})
	requireOK(t, got)
	require.Nil(t, got.Kept, "it is too large to be kept")
	require.Len(t, r.keptObjects(t), 2+4)
}

// TestKeep_WhenTheStoreIsFull: the call has its result, which does not promise what is not there.
func TestKeep_WhenTheStoreIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stream, err := r.JS.Stream(t.Context(), natsio.ObjectStream(wire.KeptBucket(r.Name)))
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxBytes = 10_000
	_, err = r.JS.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	r.work(r.options())
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "seq 20000"})
	requireOK(t, got)
	require.Nil(t, got.Kept)
	require.Equal(t, []string{"the whole output could not be stored: the fleet has no room for it"}, value[protocol.CommandRunResult](t, got).Notes)
	require.Empty(t, r.keptObjects(t))
	require.Equal(t, "20000\n", r.keptLines(t, session, wire.ResultRead{CallID: got.CallID})[108_888:], "as long as the result is there")
}

// TestKeep_WhatIsNotThereAnyMore: the beginning of a list is never taken for all of it.
func TestKeep_WhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "touch $(seq 3000)"}))
	got := r.do(session, protocol.FilesGlob{Pattern: "*", Limit: 10})
	requireOK(t, got)
	require.Len(t, value[protocol.FilesGlobResult](t, got).Paths, 10)
	require.Equal(t, &protocol.Kept{Lines: 3000}, got.Kept)
	require.Len(t, strings.Split(r.keptLines(t, session, wire.ResultRead{CallID: got.CallID}), "\n"), 3001)
	store, err := r.JS.ObjectStore(t.Context(), wire.KeptBucket(r.Name))
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), wire.PartObject(session, got.CallID, wire.PartText)))
	gone := r.kept(session, wire.ResultRead{CallID: got.CallID})
	requireFault(t, gone, protocol.StatusFailed, protocol.CodeNotFound)
	require.Contains(t, gone.Error.Message, "was kept, and is not any more")
	value := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: got.CallID, Part: wire.PartValue}))
	require.Contains(t, string(value.Content), `"total":3000`)
}
