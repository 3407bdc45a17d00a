package webui_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/webui"
)

// stream opens a stream, and returns what reads its messages.
func (s *site) stream(ctx context.Context, path string) (*bufio.Scanner, func()) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/ui"+path, http.NoBody)
	require.NoError(s.t, err)
	answer, err := s.Client().Do(request) //nolint:bodyclose // by what is returned
	require.NoError(s.t, err)
	require.Equal(s.t, 200, answer.StatusCode)
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 8<<20)
	return lines, func() { _ = answer.Body.Close() }
}

// TestFollow_ManyPagesShareOneReading: a hundred pages cost the readings of one, one that takes
// nothing holds up none, and what no page shows is not read any more.
func TestFollow_ManyPagesShareOneReading(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	var readings atomic.Int64
	large := strings.Repeat("x", 1<<20) // more than what the system takes for a browser that reads nothing
	s.handler.Follow("/thing", func(context.Context) (any, error) {
		return fmt.Sprintf("reading %d %s", readings.Add(1), large[:1<<20]), nil
	})
	const pages, messages = 100, 3
	began := time.Now()
	var all sync.WaitGroup
	var mostly atomic.Int64
	for i := range pages {
		lines, end := s.stream(t.Context(), "/thing")
		t.Cleanup(end)
		if i == 0 {
			continue // it reads nothing
		}
		all.Go(func() {
			for seen := 0; seen < messages && lines.Scan(); {
				if strings.Contains(lines.Text(), "reading ") {
					seen++
					mostly.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, (pages-1)*messages, mostly.Load())
	require.LessOrEqual(t, readings.Load(), int64(time.Since(began)/webui.LookEvery)+2, "each reading is for all pages")
}

// TestFollow_SaysThatAPageIsOld: a page says when its fleet does not answer, and when it does.
func TestFollow_SaysThatAPageIsOld(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	var readings atomic.Int64
	s.handler.Follow("/thing", func(context.Context) (any, error) {
		if n := readings.Add(1); n != 2 {
			return fmt.Sprintf("reading %d", n), nil
		}
		return nil, errors.New("nobody <answers>")
	})
	lines, end := s.stream(t.Context(), "/thing")
	defer end()
	var seen []string
	for len(seen) < 4 && lines.Scan() {
		for _, text := range []string{"reading 1", "not up to date: nobody &lt;answers&gt;", "reading 3", `<div id="stale"></div></hx-partial>`} {
			if strings.Contains(lines.Text(), text) {
				seen = append(seen, text)
			}
		}
	}
	require.Equal(t, []string{"reading 1", `<div id="stale"></div></hx-partial>`, "not up to date: nobody &lt;answers&gt;", "reading 3"}, seen[:4])
	end()
	require.Eventually(t, func() bool { return s.handler.Feeds() == 0 }, time.Minute, webui.Lingers/10)
}
