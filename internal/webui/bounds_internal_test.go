package webui

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestProse_IsBounded: no text of a model makes a page that is much longer than the text, or that
// takes long: not a table of few lines whose rows have thousands of cells, and no mixture of marks.
func TestProse_IsBounded(t *testing.T) {
	t.Parallel()
	line := func(unit string) string { return strings.Repeat(unit, maxLine/2/len(unit)) + "\n" }
	for _, text := range []string{
		line("|a") + line("|-") + strings.Repeat("a\n", 500),
		line("|a") + line("|-") + strings.Repeat("a\n\u00a0\n", 500),
		strings.Repeat("|a|b|c|d|\n|-|-|-|-|\n"+strings.Repeat("a\n", 100)+"\n", 100),
		strings.Repeat(line("_a*"), 128), strings.Repeat(line("*a**")+"\n", 128),
		strings.Repeat(line("[a]("), 128), strings.Repeat(line("> "), 128), strings.Repeat(line("1. "), 128),
	} {
		began := time.Now()
		html := string(prose(text))
		require.Less(t, len(html), 16*len(text)+1000, "%.40q", text)
		require.Less(t, time.Since(began), 30*time.Second, "%.40q", text)
	}
	usual := "| a | b |\n|---|---|\n" + strings.Repeat("| **1** | snake_case_name |\n", 100)
	require.Equal(t, 100, strings.Count(string(prose(usual)), "<strong>1</strong>"))
	long := strings.Repeat("*a* b\n\n", maxProse/4)
	require.Contains(t, prose(long), "<em>a</em>")
	require.Contains(t, prose(long), `<div class="plain">`, "what is behind the bound is text")
	require.Contains(t, prose("<b>"+strings.Repeat("*a_", 10_000)), "&lt;b&gt;*a_")
}

// TestAnsi_HidesNothing: what begins a sequence and does not end it hides no line behind it.
func TestAnsi_HidesNothing(t *testing.T) {
	t.Parallel()
	for text, shown := range map[string]string{
		"\x1b]0;title\x07a":           "a",
		"\x1b]8;;u\x1b\\a":            "a",
		"\x1b[1;31ma\x1b[0mb":         `<span class="b c1">a</span>b`,
		"\x1b[2Ja":                    "a",
		"\x1b]0;\nrm -rf /\n":         "]0;\nrm -rf /\n",
		"\x1bPx\nrm -rf /\n\x1b\\end": "Px\nrm -rf /\nend",
		"\x1b[31\nrm -rf /":           "[31\nrm -rf /",
		"\x1b[31":                     "[31",
		"\x1b]0;rm -rf /":             "]0;rm -rf /",
		"\x1b[3é rm":                  "[3é rm",
	} {
		require.Equal(t, shown, string(ansi(text)), "%q", text)
	}
}

// TestInside: where a sign-in leads to is a page of this address, as browsers read it.
func TestInside(t *testing.T) {
	t.Parallel()
	for _, to := range []string{
		"", "x", "//elsewhere", `/\elsewhere`, "/\t/elsewhere", "/\n/elsewhere", "\t//elsewhere", "/\r\nSet-Cookie: a=b", "https://elsewhere", "/\u00a0",
	} {
		require.Equal(t, "/", inside(to), "%q", to)
	}
	require.Equal(t, "/sessions?q=%09a#b", inside("/sessions?q=%09a#b"))
}

// TestFeeds_AreOfOneToken: tokens with the same name may be those of others, and may last for
// another time, so that none gets what another one may see.
func TestFeeds_AreOfOneToken(t *testing.T) {
	t.Parallel()
	var f feeds
	defer f.close()
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleOperate}
	process, later := ann, ann
	process.Known, later.Expires = judge.ByProcess, time.Now().Add(time.Hour)
	for _, who := range []judge.Principal{ann, process, later} {
		ctx := judge.With(t.Context(), who)
		of, leave := f.follow(ctx, followed{thing: "thing", open: func() func(context.Context) (any, error) {
			return func(ctx context.Context) (any, error) { return judge.Of(ctx), nil }
		}})
		defer leave()
		last, err := of.first(ctx)
		require.NoError(t, err)
		require.Equal(t, who, last.data)
	}
}

// TestFeeds_OnePrincipalDoesNotSlowOthersDown: who follows very many things has these read more
// seldom, and the things of others as often as before.
func TestFeeds_OnePrincipalDoesNotSlowOthersDown(t *testing.T) {
	t.Parallel()
	f := feeds{all: map[string]*feed{"ann": {who: "ann"}}}
	for i := range 100 * lookTogether {
		f.all[fmt.Sprint("eve ", i)] = &feed{who: "eve"}
	}
	require.EqualValues(t, 1, f.crowd("ann"))
	require.EqualValues(t, 100, f.crowd("eve"))
	for i := range 9 * lookTogether {
		f.all[fmt.Sprint(i)] = &feed{who: fmt.Sprint(i)}
	}
	require.EqualValues(t, 10, f.crowd("ann"), "with many principals, each is read more seldom")
}

// TestOutput_FindsWhereTheWordsAre: capital letters may be shorter than small ones, and longer.
func TestOutput_FindsWhereTheWordsAre(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("Ⱥ", 10_000) + " Needle\n" + strings.Repeat("\u212a", 10_000) + " neEDle\n" + strings.Repeat("x", 3*pageBytes-3) + "needle\nnone\n"
	o := &outputPage{Find: "needle"}
	require.NoError(t, o.search(strings.NewReader(text)))
	require.Len(t, o.Hits, 3)
	for i, hit := range o.Hits {
		require.EqualValues(t, i+1, hit.Line)
		require.Contains(t, strings.ToLower(hit.Text), "needle")
		require.Contains(t, strings.ToLower(text[hit.At:min(hit.At+300, int64(len(text)))]), "needle")
	}
	o = &outputPage{Find: "(a+)+"}
	require.NoError(t, o.search(strings.NewReader("aaa\n(A+)+\n")))
	require.Len(t, o.Hits, 1, "what is looked for is text")
}

// TestContentOf_NumbersAreThoseThatWereWritten: an id that no float has arrives as it is, and what
// is no number of JSON is refused.
func TestContentOf_NumbersAreThoseThatWereWritten(t *testing.T) {
	t.Parallel()
	content, err := contentOf(url.Values{"integer:id": {"9007199254740993"}, "number:n": {".5"}})
	require.NoError(t, err)
	require.JSONEq(t, `{"id":9007199254740993,"n":0.5}`, string(content))
	require.Contains(t, string(content), "9007199254740993")
	for _, bad := range []string{"NaN", "inf", "1e999", "true", "1 2", "x"} {
		_, err := contentOf(url.Values{"number:n": {bad}})
		require.ErrorContains(t, err, "must be a number", bad)
	}
}

// TestQuestion_ChoicesHaveTheirTitles, of one value and of several; what forms do not have is
// answered as JSON.
func TestQuestion_ChoicesHaveTheirTitles(t *testing.T) {
	t.Parallel()
	of := func(properties string) *questionForm {
		return formOf("s", "c", "default", &protocol.Question{Schema: []byte(`{"properties": ` + properties + `}`)}, "", "")
	}
	f := of(`{"a": {"type": "string", "oneOf": [{"const": "m1", "title": "Fish"}, {"const": "m2"}], "default": "m2"},
		"b": {"type": "array", "items": {"type": "string", "anyOf": [{"const": "t", "title": "Tea"}, {"const": "w", "title": "Wine"}]}, "default": ["w"]},
		"c": {"type": "string", "enum": ["x", "y"], "enumNames": ["Ex"]}}`)
	require.Equal(t, []choice{{"m1", "Fish", false}, {"m2", "m2", true}}, f.Fields[0].Choices)
	require.Equal(t, []choice{{"t", "Tea", false}, {"w", "Wine", true}}, f.Fields[1].Choices)
	require.Equal(t, []choice{{"x", "Ex", false}, {"y", "y", false}}, f.Fields[2].Choices)
	content, err := contentOf(url.Values{"string:a": {"m1"}, "array:b": {"t", "w"}, "string:c": {""}})
	require.NoError(t, err)
	require.JSONEq(t, `{"a": "m1", "b": ["t", "w"]}`, string(content))
	for _, properties := range []string{
		`{"b": {"type": "array", "items": {"type": "string"}}}`,
		`{"b": {"type": "array", "items": {"type": "object"}}}`, `{"b": {"type": "array"}}`,
		`{"b": {"type": "object"}}`,
	} {
		require.True(t, of(properties).JSON, properties)
	}
}

// TestConversation_EachAttemptIsMarked: what two attempts of a call write is not one text, whatever
// they write, and a late piece of the first one stays in its text.
func TestConversation_EachAttemptIsMarked(t *testing.T) {
	t.Parallel()
	u := New(Options{Base: "/ui"}).ui
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ui/sessions/s", nil)
	c := newConversation("s")
	c.add(&loop.Event{Type: loop.EventTurnStarted, Turn: 1}, "1-0")
	c.add(&loop.Event{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: loop.CallFields{CallID: "c", Name: "bash"}}, "2-0")
	drawn := func() string {
		body, err := u.render(r, "session", "item", view{Data: c.calls["c"].item.copied(viewer{})})
		require.NoError(t, err)
		return string(body)
	}
	c.write("c", &fleet.Output{Attempt: 1, Data: []byte("line 6\n")})
	require.Contains(t, drawn(), "line 6")
	require.NotContains(t, drawn(), "attempt")
	c.write("c", &fleet.Output{Attempt: 2, Data: []byte("line 1\n")})
	c.write("c", &fleet.Output{Attempt: 1, Data: []byte("line 7\n")})
	require.Regexp(t, `(?s)What attempt 1 wrote:.*line 6\nline 7<.*What attempt 2 wrote:.*line 1<`, drawn())
	c.add(&loop.Event{
		Type: loop.EventToolResult, Turn: 1, Step: 1, Status: "ok",
		CallFields:   loop.CallFields{CallID: "c"},
		ResultFields: loop.ResultFields{Content: "line 1 to 9"},
	}, "3-0")
	c.write("c", &fleet.Output{Attempt: 1, Data: []byte("line 8\n")})
	c.add(&loop.Event{Type: loop.EventTextDelta, Turn: 1, Step: 2, Text: "It"}, "")
	c.add(&loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 2, Text: "It is."}, "4-0")
	c.add(&loop.Event{Type: loop.EventTextDelta, Turn: 1, Step: 2, Text: " late"}, "")
	require.NotContains(t, drawn(), "line 8")
	require.Len(t, c.Turns[0].Items, 3, "what stands for the reply that was not seen, the call, and the next reply")
	require.Equal(t, "It is.", c.Turns[0].Items[2].Said)
}
