package worker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/lines"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
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
		require.LessOrEqual(t, len(v.Content), lines.MaxContent)
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
