package loop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func transcript(t *testing.T, events []loop.Event) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, loop.History{Events: events}.Transcript(&b))
	return b.String()
}

func exported(t *testing.T, r *rig) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, loop.History{Events: r.events(t)}.Export(&b, r.session))
	return b.String()
}

// recorded is a session of three turns: with failing tools, a denied and an approved call, a job
// whose end arrives in a later turn, and a turn that fails.
func recorded(t *testing.T) *rig {
	t.Helper()
	model := newJobRig(
		asks("a", "build", "work", "inline_fails", "nothing", "greedy"), says("first"),
		asks("b", "inline"), about("c", "job_wait", `{"job":"job_1_1_0"}`), says("second"),
		asks("d", "work"),
	)
	model.model.err = errors.New("the provider is down")
	model.opts.Policy = newJudge(t, "tools: {deny: [greedy]}")
	for i, want := range []loop.Outcome{loop.OutcomeAnswered, loop.OutcomeAnswered, loop.OutcomeFailed} {
		result := model.mustRun(t.Context(), t, []string{"one", "two", "three"}[i])
		require.Equal(t, want, result.Outcome)
	}
	return model
}

// A replay of an export has the transcript of the session, byte for byte, and makes no call.
func TestReplay_SameTranscript(t *testing.T) {
	t.Parallel()
	original := recorded(t)
	events, err := loop.ReadExport(strings.NewReader(exported(t, original)))
	require.NoError(t, err)
	recording, err := loop.History{Events: events}.Recording()
	require.NoError(t, err)
	require.Equal(t, []loop.Input{{Text: "one"}, {Text: "two"}, {Text: "three"}}, recording.Inputs())

	replay := newJobRig()
	replay.opts.Replay = recording
	runner := mustNew(t, recording, replay.fleet, replay.journal, table(t, replay.tools...), &replay.opts)
	for _, input := range recording.Inputs() {
		mustRun(t.Context(), t, runner, replay.session, input)
	}
	require.Equal(t, transcript(t, original.events(t)), transcript(t, replay.events(t)))
	require.Empty(t, replay.fleet.ran())
	require.Contains(t, transcript(t, replay.events(t)), `"text":"[job_1_1_0 has ended: ok]`)
}

// With live tools the calls are made, and the transcript shows what they do differently.
func TestReplay_LiveTools(t *testing.T) {
	t.Parallel()
	original := newRig(asks("a", "work", "agent"), says("done"))
	agent := tools.Tool{
		Definition: tools.Definition{Name: "agent", Description: "agent", Schema: []byte(`{"type":"object"}`)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return "from a sub-agent", nil }}, nil
		},
	}
	original.tools = []tools.Tool{agent}
	original.mustRun(t.Context(), t, "go")
	recording, err := loop.History{Events: original.events(t)}.Recording()
	require.NoError(t, err)
	recording.Live = true

	replay := newRig()
	replay.opts.Replay = recording
	replay.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
		return nil, protocol.Errorf(protocol.CodeToolFailed, "it changed")
	}
	runner, err := loop.New(recording, replay.fleet, replay.journal, table(t), &replay.opts) // without the tool agent
	require.NoError(t, err)
	result := mustRun(t.Context(), t, runner, replay.session, loop.Input{Text: "go"})
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []string{"1/1/0"}, replay.fleet.ran())
	require.Contains(t, transcript(t, replay.events(t)), "rejected")
	require.Contains(t, transcript(t, replay.events(t)), "from a sub-agent")
}

// A crash at any append of a replay leaves the same transcript.
func TestReplay_CrashAtEveryAppend(t *testing.T) {
	t.Parallel()
	original := newJobRig(asks("a", "build", "work"), asks("b", "work"), says("done"))
	original.mustRun(t.Context(), t, "go")
	recording, err := loop.History{Events: original.events(t)}.Recording()
	require.NoError(t, err)
	for n := 0; ; n++ {
		replay, journal := newJobRig(), &crashingJournal{untilCrash: n, kept: n % 3}
		replay.journal, replay.opts.Replay = journal, recording
		runner := mustNew(t, recording, replay.fleet, journal, table(t, replay.tools...), &replay.opts)
		_, err = runner.Run(t.Context(), replay.session, loop.Input{Text: "go"})
		if err == nil {
			require.Greater(t, n, 5)
			return
		}
		require.ErrorIs(t, err, errCrash)
		journal.untilCrash = -1
		_, err = runner.Run(t.Context(), replay.session, loop.Input{ID: ""})
		if !errors.Is(err, loop.ErrNoInput) { // else the turn had ended, or not begun
			require.NoError(t, err)
			require.Equal(t, transcript(t, original.events(t)), transcript(t, replay.events(t)), "crash at append %d", n)
		}
		require.Empty(t, replay.fleet.ran())
	}
}

func TestReadExport_BadInput(t *testing.T) {
	t.Parallel()
	head := `{"type":"session_export","version":1,"session_id":"s"}` + "\n"
	for input, want := range map[string]string{
		"":                                      `line 1: must be {"type":"session_export","version":1,...}`,
		`{"type":"turn_ended"}`:                 `line 1: must be {"type":"session_export","version":1,...}`,
		`{"type":"session_export","version":2}`: "line 1: version 2: this program reads version 1",
		head + "no JSON":                        "line 2: invalid character",
		head + `{"type":"turn_ended","turn":1}`: "event 1: session journal is invalid: turn_ended of turn 1",
	} {
		_, err := loop.ReadExport(strings.NewReader(input))
		require.ErrorContains(t, err, want, "input %s", input)
	}
	events, err := loop.ReadExport(strings.NewReader(head + `{"type":"of_a_newer_version","new_field":1}`))
	require.NoError(t, err)
	require.Len(t, events, 1)
}

// An export has neither the seed nor the names of stored objects, and can be read back.
func TestExport_RoundTrip(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.mustRun(t.Context(), t, "go")
	events := r.events(t)
	events[len(events)-2].Image = &loop.Image{MediaType: "image/png", Data: []byte("png"), Blob: "name"}
	var first, second bytes.Buffer
	require.NoError(t, loop.History{Events: events}.Export(&first, r.session))
	require.NotContains(t, first.String(), r.seed(t))
	require.NotContains(t, first.String(), `"blob"`)
	read, err := loop.ReadExport(bytes.NewReader(first.Bytes()))
	require.NoError(t, err)
	require.NoError(t, loop.History{Events: read}.Export(&second, r.session))
	require.Equal(t, first.String(), second.String())
	require.Contains(t, first.String(), `"image":{"media_type":"image/png","data":"cG5n"}`)
}
