package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// rig is a fleet with an index.
type rig struct {
	*natsiotest.Fleet

	journal *journal.Journal
	index   *Index
	dir     string
	round   int // of live
}

func newRig(t *testing.T, options Options) *rig {
	t.Helper()
	r := &rig{Fleet: natsiotest.Listening(t, natsio.Topology{}), dir: t.TempDir()}
	var err error
	r.journal, err = journal.Open(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	r.index = r.open(t, r.dir, options)
	return r
}

func (r *rig) open(t *testing.T, dir string, options Options) *Index {
	t.Helper()
	options.Secret = secret
	x, err := Open(t.Context(), r.JS, r.Name, dir, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	return x
}

// secret is that of the fleet.
func secret(context.Context) ([]byte, error) { return []byte("the secret of the fleet"), nil }

// begun is when the tests' sessions begin.
func begun() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// at is an event with the time and the number of a turn.
func at(turn int, e loop.Event) loop.Event {
	e.Turn, e.Time = turn, begun().Add(time.Duration(turn)*time.Minute)
	return e
}

// asked, replied and called are the events of a turn.
func asked(turn int, text string) loop.Event {
	return at(turn, loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: text}})
}

func replied(turn int, text string) loop.Event {
	return at(turn, loop.Event{Type: loop.EventModelReply, Step: 1, Text: text})
}

func called(turn int, id, tool, arguments, content string) []loop.Event {
	fields := loop.CallFields{CallID: protocol.CallID(id), Name: tool}
	call := at(turn, loop.Event{Type: loop.EventToolCall, Step: 1, CallFields: fields})
	call.Arguments, call.Lane = arguments, "default/sandbox/s"
	result := at(turn, loop.Event{Type: loop.EventToolResult, Step: 1, CallFields: fields, Status: "ok"})
	result.Content = content
	return []loop.Event{call, result}
}

func started(owner judge.Owner) loop.Event {
	return loop.Event{Type: loop.EventSessionStarted, Time: begun(), StartFields: loop.StartFields{Tenant: owner.Tenant}, NoteFields: loop.NoteFields{By: owner.By}}
}

// append adds events to a journal, each in a message of its own.
func (r *rig) append(t *testing.T, id protocol.SessionID, events ...loop.Event) {
	t.Helper()
	last, err := r.journal.Last(t.Context(), id)
	require.NoError(t, err)
	for _, e := range events {
		last, err = r.journal.Append(t.Context(), id, last, e)
		require.NoError(t, err)
	}
}

func (r *rig) search(t *testing.T, q Query) report.Found {
	t.Helper()
	found, err := r.index.Search(t.Context(), q)
	require.NoError(t, err)
	return found
}

// sessions are those in which words are found, the best first.
func (r *rig) sessions(t *testing.T, words string) []string {
	t.Helper()
	ids := []string{}
	for _, p := range r.search(t, Query{Words: words}).Passages {
		ids = append(ids, string(p.SessionID))
	}
	return ids
}

func TestSearch_FindsWordsPhrasesAndBeginnings(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.append(t, "greek", asked(1, "Why does the Größe of naïve café menus change?"), replied(1, "Σοφία and ΔΟΚΙΜΉ"))
	r.append(t, "chinese", asked(1, "请把文件重命名为世界地图"))
	r.append(t, "go", append(called(1, "c1", "bash", `{"command": "go test ./pkg/loop"}`, "FAIL: undefined: frobnicate\nexit status 1"),
		at(1, loop.Event{Type: loop.EventTurnEnded, Status: "failed", ResultFields: loop.ResultFields{Error: &protocol.Error{Message: "the quota is exhausted"}}}))...)
	r.append(t, "go2", asked(1, "go go go test"), asked(2, strings.Repeat("filler words ", 200)+"needle in the middle "+strings.Repeat("filler words ", 200)))
	for words, want := range map[string][]string{
		"größe":              {"greek"},
		"GROSSE":             {},
		"grosse cafe":        {},
		"grobe":              {},
		"große CAFE naive":   {"greek"},
		"σοφια":              {"greek"},
		"δοκιμη":             {"greek"},
		"文件":                 {"chinese"},
		"世界地":                {"chinese"},
		"界世":                 {},
		`"undefined: frob"*`: {"go"},
		`"go test"`:          {"go2", "go"},
		`"test go"`:          {},
		"frob*":              {"go"},
		"frob":               {},
		"quota exhausted":    {"go"},
		"./pkg/loop":         {"go"},
		"AND OR NOT NEAR":    {},
		"needle":             {"go2"},
	} {
		require.Equal(t, want, r.sessions(t, words), words)
	}
	found := r.search(t, Query{Words: "frobnicate"})
	require.Len(t, found.Passages, 1)
	p := found.Passages[0]
	require.Positive(t, p.Score)
	p.Score = 0
	require.Equal(t, report.Passage{
		SessionID: "go", Turn: 1, Step: 1, Time: begun().Add(time.Minute), Role: report.RoleResult,
		Tool: "bash", CallID: "c1", Text: "FAIL: undefined: frobnicate\nexit status 1",
	}, p)
	long := r.search(t, Query{Words: "needle"}).Passages[0].Text
	require.Less(t, len(long), passageBytes+10)
	require.Contains(t, long, "needle in the middle")

	found = r.search(t, Query{Words: "go", Limit: 1})
	require.Len(t, found.Passages, 1)
	require.True(t, found.More)
	require.Len(t, r.search(t, Query{Words: "words", Since: begun().Add(2 * time.Minute)}).Passages, 1)
	require.Empty(t, r.search(t, Query{Words: "words", Since: begun().Add(3 * time.Minute)}).Passages)
	require.Len(t, r.search(t, Query{Words: "go test", Except: "go2"}).Passages, 1)
}

func TestSearch_RefusesWhatIsNoQuery(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for words, want := range map[string]string{
		"":                            "no word",
		"  \t":                        "no word",
		`"`:                           `the quote before "" does not end`,
		`a "b c`:                      `the quote before "b c" does not end`,
		`""`:                          `"" has no letter or digit`,
		"*":                           `"*" has no letter or digit`,
		"a && b":                      `"&&" has no letter or digit`,
		strings.Repeat("a", 501):      "501 bytes: must be at most 500",
		strings.Repeat("a ", 33):      "33 words: must be at most 32",
		"\xff":                        "not UTF-8",
		strings.Repeat("世", 33) + "a": "34 words",
	} {
		_, err := r.index.Search(t.Context(), Query{Words: words})
		require.ErrorIs(t, err, codes.ErrInvalid, words)
		require.ErrorContains(t, err, want, words)
		require.NotContains(t, err.Error(), "fts5", words)
	}
	for _, limit := range []int{-1, MaxPassages + 1} {
		_, err := r.index.Search(t.Context(), Query{Words: "a", Limit: limit})
		require.ErrorIs(t, err, codes.ErrInvalid)
	}
	for _, words := range []string{`a:b`, `a^2`, `(a OR b)`, `-a`, `a+b`, `NEAR(a b)`, `a'b`, `{a}:b`, "a\x00b", `a*b`, `a**`} {
		_, err := r.index.Search(t.Context(), Query{Words: words})
		require.NoError(t, err, words)
	}
}

// A search shows what the searcher may see, and a session finds only what its owner has.
func TestSearch_ShowsEachTenantItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	ann, bob, eve := judge.Owner{Tenant: "acme", By: "token:ann"}, judge.Owner{Tenant: "acme", By: "token:bob"}, judge.Owner{Tenant: "other", By: "token:eve"}
	r.append(t, "of-ann", started(ann), asked(1, "secret plans"))
	r.append(t, "of-bob", started(bob), asked(1, "secret plans"))
	r.append(t, "of-eve", started(eve), asked(1, "secret plans"))
	r.append(t, "unowned", asked(1, "secret plans"))
	as := func(owner judge.Owner, limit int) []report.Passage {
		who := judge.PrincipalOf(owner)
		who.Role = judge.RoleRead
		return r.search(t, Query{Words: "secret", Limit: limit, May: func(_ context.Context, id protocol.SessionID, of *judge.Owner) error {
			if of == nil {
				return codes.As(codes.ErrNotFound, errors.New("no owner"))
			}
			return judge.May(who, judge.See, judge.Object{Kind: judge.Session, ID: string(id), Owner: *of})
		}}).Passages
	}
	require.Len(t, as(ann, 0), 2)
	require.Len(t, as(bob, 1), 1)
	require.Len(t, as(eve, 1), 1)
	require.EqualValues(t, "of-eve", as(eve, 0)[0].SessionID)
	require.Empty(t, as(judge.Owner{Tenant: "third", By: "token:x"}, 0))
	own := r.search(t, Query{Words: "secret", Owner: &ann}).Passages
	require.Len(t, own, 1)
	require.EqualValues(t, "of-ann", own[0].SessionID)
	require.Empty(t, r.search(t, Query{Words: "secret", Owner: &ann, Except: "of-ann"}).Passages)

	failed := errors.New("the fleet is away")
	_, err := r.index.Search(t.Context(), Query{Words: "secret", May: func(context.Context, protocol.SessionID, *judge.Owner) error { return failed }})
	require.ErrorIs(t, err, failed)
}

// onDisk reports whether any file of the index has a text.
func (r *rig) onDisk(t *testing.T, text string) (has bool) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			content, readErr := os.ReadFile(path)
			has, err = has || bytes.Contains(bytes.ToLower(content), []byte(text)), readErr
		}
		return err
	}))
	return has
}

// A session that was removed in any way is not found, and its text is in no file.
func TestUpdate_RemovedSessionsLeave(t *testing.T) {
	t.Parallel()
	stream := func(t *testing.T, r *rig) jetstream.Stream {
		t.Helper()
		stream, err := r.JS.Stream(t.Context(), wire.SessionsStream(r.Name))
		require.NoError(t, err)
		return stream
	}
	for name, remove := range map[string]func(t *testing.T, r *rig){
		"marked": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, r.journal.Mark(t.Context(), "gone"))
		},
		"removed": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, r.journal.Mark(t.Context(), "gone"))
			_, err := r.journal.Forget(t.Context(), "gone", journal.RemovedAge)
			require.NoError(t, err)
		},
		"removed without a record": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, r.journal.Mark(t.Context(), "gone"))
			_, err := r.journal.Forget(t.Context(), "gone", 0)
			require.NoError(t, err)
		},
		"purged": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, stream(t, r).Purge(t.Context(), jetstream.WithPurgeSubject(wire.EventSubject(r.Name, "gone"))))
		},
		"purged, and others written": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, stream(t, r).Purge(t.Context(), jetstream.WithPurgeSubject(wire.EventSubject(r.Name, "gone"))))
			r.append(t, "stays", asked(2, "more"), asked(3, "and more"))
		},
		"shortened": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, stream(t, r).Purge(t.Context(), jetstream.WithPurgeSubject(wire.EventSubject(r.Name, "gone")), jetstream.WithPurgeKeep(1)))
		},
		"forgotten by this process": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, stream(t, r).Purge(t.Context(), jetstream.WithPurgeSubject(wire.EventSubject(r.Name, "gone"))))
			require.NoError(t, r.index.Forget(t.Context(), "gone"))
			require.False(t, r.onDisk(t, "xyzzyplugh"), "before any update")
		},
		"removed twice": func(t *testing.T, r *rig) {
			t.Helper()
			require.NoError(t, r.journal.Mark(t.Context(), "gone"))
			_, err := r.journal.Forget(t.Context(), "gone", journal.RemovedAge)
			require.NoError(t, err)
			require.NoError(t, r.index.Update(t.Context()))
			require.NoError(t, r.index.Forget(t.Context(), "gone"))
			info, err := stream(t, r).Info(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, info.State.Msgs, r.count(t, r.index, "SELECT sum(messages) FROM session"), "else each update looks at all sessions")
		},
		"the stream was made again": func(t *testing.T, r *rig) {
			t.Helper()
			config := stream(t, r).CachedInfo().Config
			require.NoError(t, r.JS.DeleteStream(t.Context(), config.Name))
			_, err := r.JS.CreateStream(t.Context(), config)
			require.NoError(t, err)
			r.append(t, "stays", asked(1, "remains here"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.append(t, "gone", append(called(1, "c", "bash", `{"command": "echo xyzzyplugh"}`, "xyzzyplugh said"), asked(2, "last"))...)
			r.append(t, "stays", asked(1, "remains here"))
			require.Equal(t, []string{"gone", "gone"}, r.sessions(t, "xyzzyplugh"))
			require.True(t, r.onDisk(t, "xyzzyplugh"))
			remove(t, r)
			require.Empty(t, r.sessions(t, "xyzzyplugh"))
			require.Equal(t, []string{"stays"}, r.sessions(t, "remains"))
			require.False(t, r.onDisk(t, "xyzzyplugh"), "in a file")
			require.Zero(t, r.count(t, r.index, "SELECT count(*) FROM call"))
			requireRebuilt(t, r)
		})
	}
}

// count returns a number of the file.
func (r *rig) count(t *testing.T, x *Index, query string) (n int) {
	t.Helper()
	require.NoError(t, x.open.Load().read.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// dump is all that a file has of the journals, and where each word is.
func dump(t *testing.T, x *Index) (all []string) {
	t.Helper()
	_, err := x.open.Load().write.ExecContext(t.Context(), "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab(main, word, instance)")
	require.NoError(t, err)
	for _, query := range []string{
		"SELECT name, tenant || ' ' || owner || ' ' || owned || copies, last || ' ' || messages FROM session WHERE messages > 0 ORDER BY name",
		"SELECT s.name, e.at || ' ' || turn || ' ' || step || ' ' || role || ' ' || tool || ' ' || e.call, body FROM entry e JOIN session s ON s.id = e.session ORDER BY 1, 2, 3",
		"SELECT s.name, c.call || ' ' || turn || ' ' || step || ' ' || tool || ' ' || status || ' ' || lane || ' ' || c.tenant || ' ' || stored || ' ' || worker || ' ' || attempt || ' ' || coalesce(run_ms, '-'), accepted || ' ' || coalesce(finished, '-') || ' ' || (input > 0) || (output > 0) FROM call c JOIN session s ON s.id = c.session ORDER BY 1, 2",
		"SELECT s.name, v.term || ' ' || e.body, v.offset FROM vocabulary v JOIN entry e ON e.id = v.doc JOIN session s ON s.id = e.session ORDER BY 1, 2, 3",
		"SELECT 'places of words', count(*), '' FROM vocabulary",
	} {
		rows, err := x.open.Load().write.QueryContext(t.Context(), query)
		require.NoError(t, err)
		for rows.Next() {
			var a, b, c string
			require.NoError(t, rows.Scan(&a, &b, &c))
			all = append(all, a+" | "+b+" | "+c)
		}
		require.NoError(t, errors.Join(rows.Err(), rows.Close()))
	}
	return all
}

// requireRebuilt requires that the file is what it would be if it were made now.
func requireRebuilt(t *testing.T, r *rig) {
	t.Helper()
	fresh := r.open(t, t.TempDir(), Options{})
	require.NoError(t, fresh.Update(t.Context()))
	require.NoError(t, r.index.Update(t.Context()))
	want, got := dump(t, fresh), dump(t, r.index)
	require.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
}

// A fork is searched when it is complete, and has the conversation, but not the calls, of its
// origin.
func TestUpdate_Forks(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	copies := loop.Event{
		Type: loop.EventCopyStarted, Time: begun(), CallFields: loop.CallFields{CallID: "fork"},
		NoteFields: loop.NoteFields{From: "origin", By: "token:ann"}, StartFields: loop.StartFields{Tenant: "acme"},
	}
	r.append(t, "fork", append([]loop.Event{copies, asked(1, "hello there")}, called(1, "c", "bash", `{}`, "done")...)...)
	require.Empty(t, r.sessions(t, "hello"))
	r.append(t, "fork", copies, asked(1, "hello again")) // the first copy was interrupted
	r.append(t, "fork", at(1, loop.Event{Type: loop.EventSessionForked, CallFields: loop.CallFields{CallID: "fork"}}))
	require.Equal(t, []string{"fork"}, r.sessions(t, "hello"))
	require.Empty(t, r.sessions(t, "there"))
	require.Zero(t, r.count(t, r.index, "SELECT count(*) FROM call"))
	require.Len(t, r.search(t, Query{Words: "again", Owner: &judge.Owner{Tenant: "acme", By: "token:ann"}}).Passages, 1)
}

// Of what a call writes the file has digest and size; what a search returned is not found again.
func TestUpdate_InputsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	content := strings.Repeat("contents ", 1000)
	r.append(t, "s", append(called(1, "w", "write", fmt.Sprintf(`{"path": "notes.txt", "content": %q, "edits": [{"new": %q}]}`, content, content), "ok"),
		called(1, "f", wire.SessionSearchTool, `{"query": "needle"}`, "> needle")...)...)
	require.Empty(t, r.sessions(t, "contents"))
	require.Empty(t, r.sessions(t, "needle"))
	found := r.search(t, Query{Words: "notes.txt"}).Passages
	require.Len(t, found, 1)
	require.Contains(t, found[0].Text, `"bytes":9000`)
	require.Less(t, len(found[0].Text), passageBytes)
	require.Equal(t, 2, r.count(t, r.index, "SELECT count(*) FROM call WHERE finished IS NOT NULL AND input > 0 AND output > 0"))
}

// The oldest texts leave a file that would be larger than its bound, a step of them at a time. The
// latest stay, and a search says since when there are texts.
func TestUpdate_FilesAreBounded(t *testing.T) {
	t.Parallel()
	const (
		bound = 1 << 20
		turns = 2 * removeStep // they need 1.1 MiB, so a step of them leaves the file
	)
	r := newRig(t, Options{MaxBytes: bound})
	text := func(turn int) string {
		var words strings.Builder
		fmt.Fprintf(&words, "turn%d", turn)
		for range 100 {
			fmt.Fprintf(&words, " w%x", rand.Uint32())
		}
		return words.String()
	}
	for turn := range turns {
		r.append(t, "s", asked(turn, text(turn)))
	}
	require.NoError(t, r.index.Update(t.Context()))
	size := r.count(t, r.index, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size")
	require.LessOrEqual(t, size, bound)
	left := r.count(t, r.index, "SELECT count(*) FROM entry")
	require.Equal(t, turns-removeStep, left)
	require.NotEmpty(t, r.sessions(t, fmt.Sprint("turn", turns-1)), "the latest")
	require.NotEmpty(t, r.sessions(t, fmt.Sprint("turn", turns-left)), "the oldest that stays")
	found := r.search(t, Query{Words: fmt.Sprint("turn", turns-left-1)})
	require.Empty(t, found.Passages, "the one before it")
	require.NotNil(t, found.Since)
	require.Equal(t, at(turns-left-1, loop.Event{}).Time, *found.Since, "when that was said")
}

// A file that is lost, damaged or of another version is made again, also while it is open.
func TestOpen_DamagedFilesAreMadeAgain(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, r *rig, path string){
		"lost": func(t *testing.T, _ *rig, path string) {
			t.Helper()
			require.NoError(t, os.Remove(path))
		},
		"not a database": func(t *testing.T, _ *rig, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
		},
		"empty": func(t *testing.T, _ *rig, path string) {
			t.Helper()
			require.NoError(t, os.Truncate(path, 0))
		},
		"cut": func(t *testing.T, _ *rig, path string) {
			t.Helper()
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, info.Size()/2))
		},
		"overwritten pages": func(t *testing.T, _ *rig, path string) {
			t.Helper()
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			for i := 4096; i < len(content); i++ {
				content[i] = 0xa5
			}
			require.NoError(t, os.WriteFile(path, content, 0o600))
		},
		"another version": func(t *testing.T, r *rig, _ string) {
			t.Helper()
			_, err := r.index.open.Load().write.ExecContext(t.Context(), "PRAGMA user_version = 99")
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.append(t, "s", asked(1, "hello there"), replied(1, "general"))
			require.Equal(t, []string{"s"}, r.sessions(t, "hello"))
			_, err := r.index.open.Load().write.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)")
			require.NoError(t, err)
			damage(t, r, r.index.path())
			other := r.open(t, r.dir, Options{}) // another process
			found, err := other.Search(t.Context(), Query{Words: "hello"})
			require.NoError(t, err)
			require.Len(t, found.Passages, 1)
			r.append(t, "s2", asked(1, "hello again"))
			require.ElementsMatch(t, []string{"s", "s2"}, r.sessions(t, "hello"))
			found, err = other.Search(t.Context(), Query{Words: "hello"})
			require.NoError(t, err)
			require.Len(t, found.Passages, 2)
			requireRebuilt(t, r)
		})
	}
}

// Several processes update one file while journals grow and sessions are removed: each row is there
// once.
func TestUpdate_SeveralProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 4)
	for range 3 {
		x := r.open(t, r.dir, Options{})
		all.Go(func() {
			for ctx.Err() == nil {
				if err := x.Update(ctx); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
			}
		})
	}
	r.live(t, 60)
	stop()
	all.Wait()
	close(failed)
	require.NoError(t, <-failed)
	requireRebuilt(t, r)
	r.requireWhole(t)
}

// live extends journals, and removes some sessions.
func (r *rig) live(t *testing.T, rounds int) {
	t.Helper()
	for range rounds {
		i := r.round
		r.round++
		id := protocol.SessionID(fmt.Sprintf("s%d", i%7))
		call := sent(string(id), fmt.Sprintf("c%d", i), "acme", "step")
		call.Turn, call.Step, call.Tool = i, 1, "bash"
		if i%3 == 0 {
			r.settle(t, call, printed("early"))
		}
		r.append(t, id,
			append(called(i, fmt.Sprintf("c%d", i), "bash", fmt.Sprintf(`{"command": "step%d"}`, i), fmt.Sprintf("done%d", i)), asked(i, "next"), replied(i, "fine"))...)
		if i%3 == 1 {
			r.settle(t, call, printed("late"))
		}
		r.settle(t, sent(string(id), fmt.Sprintf("alone%d", i), "acme", "alone"), printed("alone"))
		if i%10 == 9 {
			require.NoError(t, r.journal.Mark(t.Context(), id))
			results, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
			require.NoError(t, err)
			require.NoError(t, results.Purge(t.Context(), jetstream.WithPurgeSubject(wire.ResultSubject(r.Name, id, ">"))))
			_, err = r.journal.Forget(t.Context(), id, journal.RemovedAge)
			require.NoError(t, err)
		}
	}
}

// requireWhole counts what the journals have, and compares it with the file.
func (r *rig) requireWhole(t *testing.T) {
	t.Helper()
	calls, texts := 0, 0
	for i := range 7 {
		history, err := r.journal.Load(t.Context(), protocol.SessionID(fmt.Sprintf("s%d", i)))
		require.NoError(t, err)
		for _, e := range history.Events {
			texts++
			if e.Type == loop.EventToolResult {
				calls++
			}
		}
	}
	results, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	info, err := results.Info(t.Context(), jetstream.WithSubjectFilter(wire.ResultSubject(r.Name, "*", "*")))
	require.NoError(t, err)
	for subject := range info.State.Subjects {
		if strings.Contains(subject, ".alone") {
			calls, texts = calls+1, texts+2
		}
	}
	require.Positive(t, calls)
	require.Equal(t, calls, r.count(t, r.index, "SELECT count(*) FROM call WHERE finished IS NOT NULL"))
	require.Equal(t, texts, r.count(t, r.index, "SELECT count(*) FROM entry"))
}

// childEnv has TestMain run the process that is killed.
const childEnv = "TOOLFLEET_TEST_INDEX"

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		if err := child(url, os.Getenv(childEnv+"_CREDS")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// child updates the index in its directory until it is killed.
func child(url, creds string) error {
	ctx := context.Background()
	nc, err := natsio.Connect(ctx, url, natsio.ConnectOptions{Name: "child", Creds: creds})
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	options := Options{Secret: secret}
	if os.Getenv(childEnv+"_AGE") != "" {
		options.MaxAge = time.Hour
	}
	for {
		x, err := Open(ctx, js, protocol.DefaultFleet, ".", options)
		if err == nil {
			err = errors.Join(x.Update(ctx), x.Close())
		}
		if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
	}
}

// The process that updates the file is killed again and again while journals grow and sessions are
// removed: no row is lost, none is there twice, and nothing removed is left.
func TestUpdate_SurvivesKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.whileKilled(t, nil, func() {
		for begun := time.Now(); time.Since(begun) < 5*time.Second; {
			r.live(t, 20)
		}
	})
	requireRebuilt(t, r)
	r.requireWhole(t)
	require.NoError(t, r.journal.Mark(t.Context(), "s0"))
	results, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	require.NoError(t, results.Purge(t.Context(), jetstream.WithPurgeSubject(wire.ResultSubject(r.Name, "s0", ">"))))
	_, err = r.journal.Forget(t.Context(), "s0", 0)
	require.NoError(t, err)
	require.NoError(t, r.index.Update(t.Context()))
	requireRebuilt(t, r)
}

// Calls of sessions without a journal leave a file with their age, and the rows of these sessions
// with the last call, and what was counted of them, although the process that removes them is
// killed again and again.
func TestUpdate_SessionsWithoutAJournalLeave(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{MaxAge: time.Hour})
	add := func(name string, n int, age time.Duration) {
		result := printed("words of " + name)
		result.FinishedAt = time.Now().Add(-age)
		r.settle(t, sent(fmt.Sprintf("%s%d", name, n), "c1", "acme", "x"), result)
	}
	n := 0
	r.whileKilled(t, []string{childEnv + "_AGE=1"}, func() {
		for begun := time.Now(); time.Since(begun) < 4*time.Second; n++ {
			add("old", n, 2*time.Hour)
			if n%10 == 0 {
				add("new", n, time.Minute)
			}
		}
	})
	require.NoError(t, r.index.Update(t.Context()))
	young := (n + 9) / 10
	for _, table := range []string{"call", "session"} {
		require.Equal(t, young, r.count(t, r.index, "SELECT count(*) FROM "+table), table)
	}
	require.Equal(t, young, r.count(t, r.index, "SELECT sum(calls) FROM rate WHERE tenant = '*'"))
	require.Equal(t, young, r.count(t, r.index, "SELECT sum(calls) FROM rate_time WHERE waited = 0 AND tenant = 'acme'"))
	require.NoError(t, r.index.Forget(t.Context(), "new0"))
	require.Equal(t, young-1, r.count(t, r.index, "SELECT count(*) FROM session"), "it was removed")
	require.Equal(t, young-1, r.count(t, r.index, "SELECT sum(calls) FROM rate WHERE tenant = '*'"))
}

// whileKilled runs a function while processes that update the file are killed one after another.
func (r *rig) whileKilled(t *testing.T, environment []string, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	program, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	var kills int
	var output bytes.Buffer
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			command := exec.CommandContext(ctx, program, "-test.run=none")
			command.Env = append(append(os.Environ(), environment...), childEnv+"="+r.Server.URL(), childEnv+"_CREDS="+r.Server.CredentialFile())
			command.Dir, command.Stderr = r.dir, &output
			if err := command.Start(); err != nil {
				done <- err
				return
			}
			ended := make(chan error, 1)
			go func() { ended <- command.Wait() }()
			select {
			case err := <-ended:
				if ctx.Err() == nil {
					done <- fmt.Errorf("the process ended by itself: %w: %s", err, output.String())
				}
				return
			case <-time.After(time.Duration(100+rand.IntN(400)) * time.Millisecond): // whatever it does then
				_ = command.Process.Kill()
				kills++
				<-ended //nolint:errcheck // it was killed
			}
		}
	}()
	do()
	stop()
	require.NoError(t, <-done)
	t.Logf("%d kills", kills)
	require.Positive(t, kills)
}
