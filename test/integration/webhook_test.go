package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// webhook runs a verb of coordinator webhook on the fleet.
func (b *broker) webhook(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"webhook", verb}, b.flags...), args...)})
}

// TestWebhooks_CoordinatorsAreKilled: two coordinators that run turns and send webhooks are killed
// again and again, in the middle of requests, too, and the receiver is down at first. The end of
// each turn, and what waits for a person, arrives with one id and the right signature.
func TestWebhooks_CoordinatorsAreKilled(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.shortLeases(t)
	var mu sync.Mutex
	secret, faults, up := "", []string{}, false
	got := map[string]map[string]bool{} // ids, by event
	asked := make(chan struct{}, 1000)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		works := up
		signed, err := standardwebhooks.NewWebhook(secret)
		mu.Unlock()
		if err == nil {
			err = signed.Verify(body, r.Header)
		}
		var event struct {
			Type string
			Data struct {
				SessionID string `json:"session_id"`
				Turn      int
				Tool      string
			}
		}
		if err == nil {
			err = json.Unmarshal(body, &event)
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		time.Sleep(10 * time.Millisecond) // so that senders are killed meanwhile
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			faults = append(faults, fmt.Sprintf("%v: %s", err, body))
		}
		if !works {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		name := fmt.Sprint(event.Type, " ", event.Data.SessionID, " ", event.Data.Turn, event.Data.Tool)
		if got[name] == nil {
			got[name] = map[string]bool{}
		}
		got[name][r.Header.Get("webhook-id")] = true
	}))
	t.Cleanup(receiver.Close)
	flags := append([]string{"--webhook-host", "127.0.0.1:*", "--webhook-plain", "--ask-for", "bash"}, b.flags...)
	model := script(t, say("Look.", bash("c1", "true")), say("Done."))
	plain := script(t, say("Done."))
	startServe(t, plain, b.flags...) // it sends none
	added := b.webhook(t, "add", receiver.URL)
	require.Equal(t, 0, added.code, added.stderr)
	id, whsec, _ := strings.Cut(strings.TrimSpace(added.stdout), "\n")
	mu.Lock()
	secret = whsec
	mu.Unlock()
	victims := []*process{startServe(t, plain, flags...), startServe(t, plain, flags...)}
	const turns = 12
	var sessions []string
	for i := range turns {
		sessions = append(sessions, b.submit(t, "hello"))
		if i == turns/2 {
			mu.Lock()
			up = true
			mu.Unlock()
		}
		if i%2 == 1 {
			select { // a request is under way
			case <-asked:
			case <-time.After(perProcess):
			}
			victims[i/2%2].kill(t)
			victims[i/2%2] = startServe(t, plain, flags...)
		}
	}
	startServe(t, model, flags...)
	waiting := strings.TrimSpace(b.submit(t, "--model", model, "ask me"))
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range sessions {
			if len(got["turn.ended "+s+" 1"]) == 0 {
				return false
			}
		}
		return len(got["approval.waiting "+waiting+" 0bash"]) > 0
	}, patience, perProcess)
	mu.Lock()
	require.Empty(t, faults)
	for name, ids := range got {
		if strings.HasPrefix(name, "turn.ended") {
			require.Len(t, ids, 1, name)
		}
	}
	mu.Unlock()
	require.Eventually(t, func() bool {
		ls := b.webhook(t, "ls", "--json")
		require.Equal(t, 0, ls.code, ls.stderr)
		require.NotContains(t, ls.stdout, "whsec_")
		var list []struct{ Waiting, Failed int }
		require.NoError(t, json.Unmarshal([]byte(ls.stdout), &list))
		return list[0].Waiting == 0 && list[0].Failed == 0
	}, patience, perProcess)
	tested := b.webhook(t, "test", id)
	require.Equal(t, 0, tested.code, tested.stderr)
	require.Contains(t, tested.stdout, "has arrived")
	removed := b.webhook(t, "rm", id)
	require.Equal(t, 0, removed.code, removed.stderr)
	require.Contains(t, b.webhook(t, "ls").stdout, "there are no webhooks")
}
