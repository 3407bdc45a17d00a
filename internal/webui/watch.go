package webui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
)

const (
	// lookEvery is the least time between two readings of what an open page shows.
	lookEvery = time.Second
	// lookShare is the part of the time that readings of one thing may take: 1 of lookShare.
	lookShare = 5
	// lookTogether is how many things are read that often. With more of them, each is read more
	// seldom: see crowd.
	lookTogether = 8
	// lingers is how long a thing is still read when no page shows it, so that the next page has it
	// at once: of the first maxLingering things.
	lingers      = 5 * time.Second
	maxLingering = 256
)

// feeds are what open pages follow. Pages of one principal that show the same thing share its
// readings, however many they are. The last reading replaces those before it: a browser that takes
// nothing misses some, and none waits for it.
type feeds struct {
	mu     sync.Mutex
	all    map[string]*feed
	ended  bool
	joined sync.WaitGroup
}

// feed is one thing that is followed.
type feed struct {
	of        *feeds
	who       string
	followers int
	idle      *time.Timer
	end       context.CancelFunc

	mu   sync.Mutex
	last *reading
}

// reading is what was read of a thing.
type reading struct {
	data any
	err  error
	next chan struct{} // closed when there is a newer one

	mu    sync.Mutex
	drawn map[string][]part // by the key of forms and the name of the page
}

// part is a part of a page, by its id.
type part struct {
	id   string
	body []byte
	sum  [sha256.Size]byte
}

// followed says what a page follows.
type followed struct {
	thing string // all that the reading depends on, in addition to the principal
	every time.Duration
	free  time.Duration // of a reading, which costs nothing: it waits for answers
	paced bool          // it bounds itself what its readings cost
	// open returns what reads the thing, for as long as it is followed.
	open func() func(ctx context.Context) (any, error)
}

// watcher is whose pages may share what was read: those of one principal, as it is known, and as
// long as it may see.
func watcher(ctx context.Context) string {
	who := judge.Of(ctx)
	return fmt.Sprintf("%s %q %d", who.ID(), who.Known, who.Expires.UnixNano())
}

// follow begins to follow a thing, until leave.
func (f *feeds) follow(ctx context.Context, what followed) (of *feed, leave func()) {
	who := watcher(ctx)
	key := who + "\x00" + what.thing
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return &feed{last: &reading{err: fleet.ErrClosed, next: make(chan struct{})}}, func() {}
	}
	if of = f.all[key]; of == nil {
		of = &feed{of: f, who: who, last: &reading{next: make(chan struct{})}}
		if f.all == nil {
			f.all = map[string]*feed{}
		}
		f.all[key] = of
		reading, end := context.WithCancel(context.WithoutCancel(ctx)) // for those who follow later, too
		of.end = end
		f.joined.Go(func() { of.run(reading, what) })
	}
	if of.followers++; of.idle != nil {
		of.idle.Stop()
	}
	return of, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch of.followers--; {
		case of.followers > 0:
		case len(f.all) > maxLingering, f.all[key] != of: // the latter was renewed
			f.drop(key, of)
		default:
			of.idle = time.AfterFunc(lingers, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				if of.followers == 0 {
					f.drop(key, of)
				}
			})
		}
	}
}

// drop ends a feed that no page follows.
func (f *feeds) drop(key string, of *feed) {
	if f.all[key] == of {
		delete(f.all, key)
	}
	of.end()
}

// renew has the next page of a principal read things of a kind again: it has changed one of them.
func (f *feeds) renew(ctx context.Context, kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, of := range f.all {
		if !strings.HasPrefix(key, watcher(ctx)+"\x00"+kind) {
			continue
		}
		if delete(f.all, key); of.followers == 0 {
			of.end() // else its pages still follow it
		}
	}
}

// close ends all feeds.
func (f *feeds) close() {
	f.mu.Lock()
	f.ended = true
	for _, of := range f.all {
		if of.end(); of.idle != nil {
			of.idle.Stop()
		}
	}
	f.mu.Unlock()
	f.joined.Wait()
}

// crowd is by how much more seldom things of a principal are read. However many things others
// follow, of each of them only some count.
func (f *feeds) crowd(who string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, all := map[string]int{}, 0
	for _, one := range f.all {
		of[one.who]++
	}
	for _, things := range of {
		all += min(things, lookTogether)
	}
	return time.Duration(max(all, of[who], lookTogether) / lookTogether)
}

// run reads the thing again and again.
func (f *feed) run(ctx context.Context, what followed) {
	read, every := what.open(), max(what.every, lookEvery)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		bounded, cancel := within(ctx)
		data, err := read(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		before := f.last
		f.last = &reading{data: data, err: err, next: make(chan struct{})}
		f.mu.Unlock()
		close(before.next)
		took := time.Since(began)
		rest := (lookShare - 1) * (took - what.free)
		if what.paced {
			rest = 0
		}
		timer.Reset(max(every-took, rest, 0) * f.of.crowd(f.who))
	}
}

// now is the last reading.
func (f *feed) now() *reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// first waits for a reading.
func (f *feed) first(ctx context.Context) (*reading, error) {
	for {
		last := f.now()
		if last.data != nil || last.err != nil {
			return last, last.err
		}
		select {
		case <-last.next:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// look is the last reading of a thing, or the first one.
func look[T any](ctx context.Context, u *ui, what followed) (data T, err error) {
	of, leave := u.feeds.follow(ctx, what)
	defer leave()
	last, err := of.first(ctx)
	if err != nil {
		return data, err
	}
	data, _ = last.data.(T)
	return data, nil
}

// partsFor draws the parts of a page once.
func (d *reading) partsFor(key string, draw func(data any) []part) []part {
	d.mu.Lock()
	defer d.mu.Unlock()
	if made, is := d.drawn[key]; is {
		return made
	}
	if d.drawn == nil {
		d.drawn = map[string][]part{}
	}
	d.drawn[key] = draw(d.data)
	return d.drawn[key]
}

// stream sends the parts of a page whenever they change, until the browser has gone. One message
// has all that changed with a reading. Pages of one name show the same.
func (u *ui) stream(w http.ResponseWriter, r *http.Request, what followed, name string, draw func(data any) []part) error {
	of, leave := u.feeds.follow(r.Context(), what)
	defer leave()
	last, err := of.first(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	shown, key := map[string][sha256.Size]byte{}, u.formKey(r)+name
	for {
		var out bytes.Buffer
		for _, p := range last.partsFor(key, func(data any) []part {
			stale := u.part(r, "fleet", "stale", last.err)
			if last.err != nil {
				return []part{stale} // the others stay as they are
			}
			return append(draw(data), stale)
		}) {
			if sum, is := shown[p.id]; !is || sum != p.sum {
				shown[p.id] = p.sum
				partial(&out, p.id, "outerMorph", p.body)
			}
		}
		if !send(w, message(out.Bytes())) {
			return nil
		}
		select {
		case <-last.next:
		case <-r.Context().Done():
			return nil
		case <-access.Draining(r.Context()):
			return nil // the browser connects again
		}
		last = of.now()
	}
}

// send sends a message of a stream; false if the browser has gone.
func send(w http.ResponseWriter, body []byte) bool {
	if _, err := w.Write(body); err != nil {
		return false
	}
	return http.NewResponseController(w).Flush() == nil
}

// part draws a block of a page, whose name is the id of its element.
func (u *ui) part(r *http.Request, page, block string, data any) part {
	body, err := u.render(r, page, block, view{Data: data})
	if err != nil {
		u.Logger.ErrorContext(r.Context(), "part of a page cannot be made", slog.String("page", page), slog.String("part", block), slog.Any("error", err))
	}
	return part{block, body, sha256.Sum256(body)}
}

// parts draws blocks of a page.
func (u *ui) parts(r *http.Request, page string, data any, blocks ...string) []part {
	made := make([]part, 0, len(blocks))
	for _, block := range blocks {
		made = append(made, u.part(r, page, block, data))
	}
	return made
}
