//go:build linux

package browser

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// walk is a question that a person has, who has just opened the pages and knows nothing else.
func (s *scene) walk(t *testing.T, clicks int, steps func(tb *tab)) {
	t.Helper()
	tb := s.tab(t)
	tb.open("/")
	tb.clicked = 0
	began := time.Now()
	steps(tb)
	t.Logf("answered after %d clicks and %s", tb.clicked, time.Since(began).Round(100*time.Millisecond))
	require.LessOrEqual(t, tb.clicked, clicks, "clicks")
	require.Less(t, time.Since(began), time.Minute)
	tb.harmless()
}

// TestWalks: the pages alone answer six questions, each within a minute. docs/walks.md has them as
// steps.
func TestWalks(t *testing.T) {
	s := newScene(t)
	s.lively()
	s.loses("w-2", "render")

	t.Run("why a call waits", func(t *testing.T) {
		s.walk(t, 3, func(tb *tab) {
			tb.clickIn("nav.side", "Lanes")
			tb.clickIn("main", "account/4711")
			tb.sees("held", "waits")
			tb.sees(s.called["holds"]) // what it waits for
		})
	})
	t.Run("which worker was lost", func(t *testing.T) {
		s.walk(t, 2, func(tb *tab) {
			tb.clickIn("nav.side", "Fleet")
			tb.sees("lost", "w-2")
		})
	})
	t.Run("what a failed command printed", func(t *testing.T) {
		s.walk(t, 3, func(tb *tab) {
			tb.clickIn("nav.side", "Sessions")
			tb.clickIn("main", "Build the program.")
			tb.sees("exit 2", "main.c:7: error: expected ';' before '}'")
		})
	})
	t.Run("who holds a lane", func(t *testing.T) {
		s.walk(t, 3, func(tb *tab) {
			tb.clickIn("nav.side", "Lanes")
			tb.clickIn("main", "account/4711")
			tb.sees("held by w-1", s.called["holds"])
		})
	})
	t.Run("what a turn cost", func(t *testing.T) {
		s.ask(http.MethodPost, "/v1/sessions/repair/cancel", object{}, nil)
		s.walk(t, 3, func(tb *tab) {
			tb.clickIn("nav.side", "Sessions")
			tb.clickIn("main", "The tests of this project fail.")
			tb.sees("$0.02")
			tb.click("Timeline")
			tb.sees("$0.02", "Turn 1")
		})
	})
	t.Run("which tenant is throttled", func(t *testing.T) {
		s.walk(t, 2, func(tb *tab) {
			tb.clickIn("nav.side", "Limits")
			tb.sees("tenant globex", "throttled", "1 of 1 turns are in flight")
		})
	})
}
