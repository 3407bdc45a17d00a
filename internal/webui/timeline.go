package webui

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// keptLife is how long a trace or a description is shown to all that watch a session without being
// made again, at least: traces of long turns take long. maxTraces bounds how many are kept of one
// session.
const (
	keptLife  = time.Second
	maxTraces = 8
)

// traced is a trace that is made by one request at a time.
type traced struct {
	mu    sync.Mutex
	until time.Time
	made  *report.Trace
}

// trace is where the time of a turn went; 0 is the last one. All that watch the session share what
// is made.
func (u *ui) trace(ctx context.Context, k *kept, turn int) (*report.Trace, error) {
	of := k.traces.Make(turn, func() *traced { return &traced{} })
	k.traces.Resize(turn, of, 0)
	of.mu.Lock()
	defer of.mu.Unlock()
	began := time.Now()
	if began.Before(of.until) {
		return of.made, nil
	}
	made, err := u.all().Trace(ctx, k.id, turn)
	if err == nil {
		err = k.stays(ctx, u)
	}
	if err == nil {
		of.made, of.until = made, time.Now().Add(max(keptLife, (lookShare-1)*time.Since(began)))
		k.mu.Lock()
		k.of.traced(made.Spans)
		k.mu.Unlock()
	}
	return made, err
}

// chart is a trace, or a section of it, as a page draws it.
type chart struct {
	*report.Trace

	Session    protocol.SessionID // whose page it is
	From, To   float64            // milliseconds of the section
	Bars       []bar
	LeftOut    int  // spans that are not drawn
	In         bool // a section is shown
	Near       bool // the conversation is next to it
	Prev, Next int
}

// bar is a span as it is drawn.
type bar struct {
	report.Span

	Label string
	Link  string // of the span
	Zoom  string
	Row   bool // it is a call of this page's session
	Parts []piece
}

// piece is a part of a span, in thousandths of the section.
type piece struct {
	report.Part

	Class string
	X, W  int
	Link  string // to what it waited for
}

// Words say what the part was for and how long.
func (p piece) Words() string { return terminal.PartWords(&p.Part) }

// Took is how long the span took.
func (b bar) Took() string { return terminal.Millis(b.DurationMS) }

// Waits are the parts that say why the span took so long.
func (b bar) Waits() (waits []piece) {
	for _, p := range b.Parts {
		if p.Reason.Class() == report.ClassWait && terminal.IsSaid(&p.Part) {
			waits = append(waits, p)
		}
	}
	return waits
}

// Said is the whole bar in words, for those who do not see it.
func (b bar) Said() string {
	words := make([]string, 0, len(b.Parts))
	for _, p := range b.Parts {
		if terminal.IsSaid(&p.Part) {
			words = append(words, p.Words())
		}
	}
	return strings.Join(append([]string{b.Label + ": " + terminal.Millis(b.DurationMS)}, words...), ", ")
}

// maxBars is how many spans a timeline draws, and maxNow how many the column next to a
// conversation.
const (
	maxBars = 500
	maxNow  = 40
)

// chartOf draws a section of a trace; all of it, if to is 0. Of more than most spans, the last ones
// are drawn.
func chartOf(id protocol.SessionID, t *report.Trace, from, to float64, most int) *chart {
	c := &chart{Trace: t, Session: id, From: max(0, from), To: to, In: to > from && to > 0}
	if !c.In {
		c.From, c.To = 0, max(t.DurationMS, 1)
	}
	for i := range t.Spans {
		s := &t.Spans[i]
		if s.StartMS <= c.To && s.StartMS+s.DurationMS >= c.From {
			c.Bars = append(c.Bars, c.bar(s))
		}
	}
	c.LeftOut = max(0, len(c.Bars)-most)
	c.Bars = c.Bars[c.LeftOut:]
	return c
}

// bar draws a span.
func (c *chart) bar(s *report.Span) bar {
	b := bar{Span: *s, Label: cmp.Or(s.About, s.Name, string(s.Kind)), Row: s.SessionID == c.Session && s.CallID != ""}
	if s.CallID != "" {
		b.Link = sessionCallPath(s.SessionID, s.CallID)
	}
	b.Zoom = c.section(s.StartMS, s.StartMS+max(s.DurationMS, 1))
	place := func(ms float64) int { return min(max(int((ms-c.From)*1000/(c.To-c.From)), 0), 1000) }
	for _, part := range s.Parts {
		p := piece{Part: part, X: place(part.StartMS), Class: string(part.Reason.Class()), Link: partPath(s.SessionID, s.Lane, &part)}
		p.W = max(place(part.StartMS+part.MS)-p.X, 1)
		if part.Reason.Class() == report.ClassRun {
			if p.Class = stateOf(s.State).Class; part.Open || p.Class == "plain" || p.Class == "wait" {
				p.Class = "run"
			}
		}
		b.Parts = append(b.Parts, p)
	}
	return b
}

// section is the address of a section of the turn.
func (c *chart) section(from, to float64) string {
	return queried(sessionPath(c.Session, "timeline"), "turn", strconv.Itoa(c.Turn), "from", fmt.Sprintf("%.0f", max(0, from)), "to", fmt.Sprintf("%.0f", to))
}

// Closer, Wider, Earlier and Later are the addresses of sections next to the one that is shown.
func (c *chart) Closer() string {
	quarter := (c.To - c.From) / 4
	return c.section(c.From+quarter, max(c.To-quarter, c.From+quarter+1))
}

// Wider shows twice as much.
func (c *chart) Wider() string {
	half := (c.To - c.From) / 2
	return c.section(c.From-half, min(c.To+half, max(c.DurationMS, 1)))
}

// Earlier shows what is before.
func (c *chart) Earlier() string {
	length := c.To - c.From
	from := max(0, c.From-length/2)
	return c.section(from, from+length)
}

// Later shows what comes after.
func (c *chart) Later() string { return c.section((c.From+c.To)/2, (c.From+c.To)/2+c.To-c.From) }

// timeline shows where the time of a turn went.
func (u *ui) timeline(ctx context.Context, r *http.Request, p *sessionPage) error {
	p.kept.mu.Lock()
	turns := make([]int, 0, len(p.kept.of.Turns))
	for _, t := range p.kept.of.Turns {
		turns = append(turns, t.N)
	}
	p.kept.mu.Unlock()
	if len(turns) == 0 {
		return nil
	}
	query := r.URL.Query()
	n, _ := strconv.Atoi(query.Get("turn"))
	from, _ := strconv.ParseFloat(query.Get("from"), 64)
	to, _ := strconv.ParseFloat(query.Get("to"), 64)
	if from != from || to != to || from > 1e15 || to > 1e15 { // no numbers
		from, to = 0, 0
	}
	made, err := u.trace(ctx, p.kept, max(0, n))
	if err != nil {
		return err
	}
	p.Chart = chartOf(p.Session, made, from, to, maxBars)
	at := slices.Index(turns, made.Turn)
	if at > 0 {
		p.Chart.Prev = turns[at-1]
	}
	if at >= 0 && at+1 < len(turns) {
		p.Chart.Next = turns[at+1]
	}
	return nil
}

// near is what the column next to a conversation shows of a turn; nil if it cannot be made.
func (u *ui) near(ctx context.Context, k *kept, turn int) *chart {
	ctx, cancel := within(ctx)
	defer cancel()
	made, err := u.trace(ctx, k, turn)
	if err != nil {
		u.Logger.DebugContext(ctx, "no trace of the turn", slog.Any("error", err))
		return nil
	}
	c := chartOf(k.id, made, 0, 0, maxNow)
	c.Near = true
	return c
}

// Length is how long the turn took until now.
func (t *turn) Length() time.Duration {
	end := t.Ended
	if end.IsZero() {
		end = time.Now()
	}
	return max(end.Sub(t.Begun), time.Millisecond)
}
