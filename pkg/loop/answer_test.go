package loop_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// personSchema is the schema of the answers of these tests. JSON writes its < in another way.
const personSchema = `{
  "type": "object", "description": "<a person>", "required": ["name", "age"], "additionalProperties": false,
  "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}
}`

func asked(text string) loop.Input {
	return loop.Input{Text: text, AnswerSchema: json.RawMessage(personSchema)}
}

func TestAnswer_IsValidUnderTheSchema(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"name":"Ada","age":36}`:                                  `{"name":"Ada","age":36}`,
		" {\n \"age\": 36,\n \"name\": \"A<a\" }\n":                `{"age":36,"name":"A<a"}`,
		"Here it is:\n```json\n{\"name\":\"Ada\",\"age\":36}\n```": `{"name":"Ada","age":36}`,
	} {
		r := newRig(says(text), says("free text"))
		result := r.mustRunInput(t.Context(), t, asked("who"))
		require.Equal(t, loop.OutcomeAnswered, result.Outcome, text)
		require.Equal(t, want, string(result.Answer))
		require.Equal(t, text, result.Text)
		ended := r.watch.of(loop.EventTurnEnded)[0]
		require.Equal(t, want, string(ended.Answer))
		shown := r.model.lastSeen()
		require.Contains(t, shown[1].Text, `"description":"<a person>"`)

		next := r.mustRun(t.Context(), t, "and now?")
		require.Equal(t, "free text", next.Text)
		require.Nil(t, next.Answer, "the schema is that of one turn")
		require.Equal(t, shown[1], r.model.lastSeen()[1], "a loaded session shows the same")
	}
}

// The model is asked again with every fault, which is a step that counts, and no more than twice.
func TestAnswer_IsAskedForAgainWithTheFaults(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says(`{"name":1,"town":"London"}`), says("It is Ada."), says(`{"name":"Ada","age":36}`))
	result := r.mustRunInput(t.Context(), t, asked("who"))
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.JSONEq(t, `{"name":"Ada","age":36}`, string(result.Answer))
	require.Equal(t, 4, result.Steps)
	require.Equal(t, int64(40), result.Usage.InputTokens)
	refused := r.watch.of(loop.EventAnswerRefused)
	require.Len(t, refused, 2)
	for _, fault := range []string{"age: is required, but missing", "name: must be string, not number", "town: there is no such property"} {
		require.Contains(t, refused[0].Text, fault)
	}
	require.Contains(t, refused[1].Text, "it is not JSON")
	require.Equal(t, []int{2, 3}, []int{refused[0].Step, refused[1].Step})
	last := r.model.lastSeen()
	require.Equal(t, refused[1].Text, last[len(last)-1].Text)
	require.Equal(t, loop.RoleUser, last[len(last)-1].Role)
}

func TestAnswer_ThatStaysInvalidFailsTheTurn(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"fault": `{"name":"Ada","age":-1}`, "twice": `{"name":"Ada","age":1,"age":2}`, "more": `{"name":"Ada","age":1} {}`,
		"deep": strings.Repeat("[", 1000), "number": `{"name":"Ada","age":1e999}`, "blocks": "```\n{}\n```\n```\n{}\n```",
	} {
		r := newRig(says(text), says(text), says(text), says("not asked"))
		result := r.mustRunInput(t.Context(), t, asked("who"))
		require.Equal(t, loop.OutcomeFailed, result.Outcome, name)
		require.Equal(t, protocol.CodeAnswerInvalid, result.Error.Code, name)
		require.Contains(t, result.Error.Message, "not valid under the schema, 3 times", name)
		require.Equal(t, 3, result.Steps, name)
		require.Equal(t, text, result.Text, name)
		require.Nil(t, result.Answer, name)
	}
}

func TestAnswer_StaysInTheBoundsOfTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(says("no"), says("no"), says("no"))
	r.opts.MaxSteps = 2
	result := r.mustRunInput(t.Context(), t, asked("who"))
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	require.Equal(t, 2, result.Steps)

	r = newRig(says("no"), says(`{"name":"Ada","age":36}`))
	r.opts.Budget = &protocol.Spending{Steps: 1}
	result = r.mustRunInput(t.Context(), t, asked("who"))
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	require.Nil(t, result.Answer, "it is no answer of a turn that was answered")
}

func TestAnswer_BadSchemasAreRefusedBeforeTheTurn(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":`:                              "not JSON",
		`["a"]`:                                 "must be a JSON object",
		`{"type":"nothing"}`:                    "type",
		`{"$ref":"https://example.com/a.json"}`: "a schema may refer to itself only",
		`{"$ref":"file:///etc/passwd"}`:         "a schema may refer to itself only",
		`{"const":"` + strings.Repeat("x", 65536) + `"}`: "must be at most 65536",
	} {
		r := newRig(says("{}"))
		input := loop.Input{Text: "who", AnswerSchema: json.RawMessage(schema)}
		require.ErrorContains(t, input.Check(nil), want)
		_, err := r.runInput(t.Context(), t, input)
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, &protocol.Error{Code: protocol.CodeInvalidArguments})
		require.Empty(t, r.events(t))
	}
}

// A crash at any append changes neither the answer nor what the model reads, and each refused
// answer is counted once.
func TestAnswer_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	replies := func() []loop.Reply {
		return []loop.Reply{asks("a", "work"), says("no"), says(`{"age":1}`), says(`{"name":"Ada","age":36}`), says("checked")}
	}
	clean := newRig(replies()...)
	clean.session = session
	require.Equal(t, loop.OutcomeAnswered, clean.mustRunInput(t.Context(), t, asked("go")).Outcome)
	want := settled(t, clean)
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			journal := &crashingJournal{untilCrash: n, kept: kept}
			r := newRig(replies()...)
			r.session, r.journal = session, journal
			result, err := r.runInput(t.Context(), t, asked("go"))
			journal.untilCrash = -1
			if crashed = err != nil; crashed {
				require.ErrorIs(t, err, errCrash, name)
				events := r.events(t)
				if len(events) == 0 || events[len(events)-1].Type != loop.EventTurnEnded {
					result = r.mustRunInput(t.Context(), t, asked("go"))
					require.JSONEq(t, `{"name":"Ada","age":36}`, string(result.Answer), name)
					require.Equal(t, 4, result.Steps, name)
				}
			}
			require.Equal(t, want, settled(t, r), name)
			refused := 0
			for _, e := range r.events(t) {
				if e.Type == loop.EventAnswerRefused {
					refused++
				}
			}
			require.Equal(t, 2, refused, name)
			if !crashed || kept == journal.size {
				break
			}
		}
		if !crashed {
			require.Greater(t, n, 8)
			return
		}
	}
}

// A replay has the same answer, and a copy of the session, as a fork is, shows the same schema.
func TestAnswer_ReplayAndExportKeepIt(t *testing.T) {
	t.Parallel()
	original := newRig(says("no"), says(`{"name":"Ada","age":36}`))
	want := original.mustRunInput(t.Context(), t, asked("who"))
	events, err := loop.ReadExport(strings.NewReader(exported(t, original)))
	require.NoError(t, err)
	recording, err := loop.History{Events: events}.Recording()
	require.NoError(t, err)
	replay := newRig()
	replay.opts.Replay = recording
	runner := mustNew(t, recording, replay.fleet, replay.journal, table(t), &replay.opts)
	got := mustRun(t.Context(), t, runner, replay.session, recording.Inputs()[0])
	require.Equal(t, want.Answer, got.Answer)
	require.Equal(t, transcript(t, original.events(t)), transcript(t, replay.events(t)))
}
