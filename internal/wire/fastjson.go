package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// plain writes and reads calls and results as encoding/json writes them, in a fraction of its time:
// the fields in their order, without spaces, and strings without escapes. Nearly all bodies are so.
// It gives up when anything is different, and then encoding/json does the work.
type plain struct {
	body    []byte // what is written so far
	reads   bool
	rest    string // what is not read yet, without the last field
	differs bool   // it gave up
}

// The fields that callFieldsOf and resultFieldsOf know. While a call or a result has others,
// nothing is plain.
const (
	plainCall = "ID SessionID ToolCallID Tool Turn Step Index Pool Tenant Priority By Resources Delivery MaxAttempts Retry " +
		"MinLevel Roots IssuedAt NotBefore QueueTimeout RunTimeout Deadline After MadeAfter Again Digest Payload"
	plainResult = "CallID SessionID Status Error WorkerID Attempt Sequence Epoch Checkpoint Tries Level Network QueueMS LaneMS RunMS SandboxMS StoreMS Waits FinishedAt Tool Digest Kept Value"
)

var (
	knowsCalls   = plainCall == fieldsOf[protocol.Call]()     //nolint:gochecknoglobals // a constant
	knowsResults = plainResult == fieldsOf[protocol.Result]() //nolint:gochecknoglobals // a constant
)

// fieldsOf is the names of the fields of a struct.
func fieldsOf[T any]() string {
	var names []string
	for field := range reflect.TypeFor[T]().Fields() {
		names = append(names, field.Name)
	}
	return strings.Join(names, " ")
}

// callFieldsOf visits the fields of a call but for its payload.
func (p *plain) callFieldsOf(c *protocol.Call) {
	p.differs = p.differs || !knowsCalls || len(c.Roots) > 0 || c.Retry != nil || len(c.After) > 0
	p.text("id", (*string)(&c.ID), always)
	p.text("session_id", (*string)(&c.SessionID), always)
	p.text("tool_call_id", &c.ToolCallID, ifSet)
	p.text("tool", &c.Tool, ifSet)
	whole(p, "turn", &c.Turn)
	whole(p, "step", &c.Step)
	whole(p, "index", &c.Index)
	p.text("pool", (*string)(&c.Pool), always)
	p.text("tenant", (*string)(&c.Tenant), ifSet)
	p.text("priority", (*string)(&c.Priority), ifSet)
	p.text("by", &c.By, ifSet)
	p.uses("resources", &c.Resources)
	p.text("delivery", (*string)(&c.Delivery), always)
	whole(p, "max_attempts", &c.MaxAttempts)
	p.text("min_level", &c.MinLevel, ifSet)
	p.time("issued_at", &c.IssuedAt, always)
	p.time("not_before", &c.NotBefore, ifSet)
	whole(p, "queue_timeout_ms", &c.QueueTimeout)
	whole(p, "run_timeout_ms", &c.RunTimeout)
	p.time("deadline", &c.Deadline, ifSet)
	whole(p, "made_after", &c.MadeAfter)
	if p.field("again", c.Again) {
		p.literal("true")
		c.Again = true
	}
	p.text("digest", &c.Digest, ifSet)
}

// resultFieldsOf visits the fields of a result but for its value.
func (p *plain) resultFieldsOf(r *protocol.Result) {
	p.differs = p.differs || !knowsResults || r.Error != nil || len(r.Tries) > 0 || r.Kept != nil
	p.text("call_id", (*string)(&r.CallID), always)
	p.text("session_id", (*string)(&r.SessionID), always)
	p.text("status", (*string)(&r.Status), always)
	p.text("worker_id", (*string)(&r.WorkerID), ifSet)
	whole(p, "attempt", &r.Attempt)
	whole(p, "sequence", &r.Sequence)
	whole(p, "epoch", &r.Epoch)
	whole(p, "checkpoint", &r.Checkpoint)
	p.text("level", &r.Level, ifSet)
	p.text("network", &r.Network, ifSet)
	p.number("queue_ms", &r.QueueMS, always)
	p.number("lane_ms", &r.LaneMS, always)
	p.number("run_ms", &r.RunMS, always)
	p.number("sandbox_ms", &r.SandboxMS, ifSet)
	p.number("store_ms", &r.StoreMS, ifSet)
	p.waits(&r.Waits)
	p.time("finished_at", &r.FinishedAt, always)
	p.text("tool", &r.Tool, ifSet)
	p.text("digest", &r.Digest, ifSet)
}

const (
	always = true  // the field is also written when it is empty
	ifSet  = false // the field is left out then
)

// writePlain writes an object of a type, whose last field is JSON already and left out if it is
// empty; nil when it has to be written in another way.
func writePlain(kind string, visit func(*plain), last string, value json.RawMessage) []byte {
	p := &plain{body: make([]byte, 0, plainRoom+len(value))}
	p.body = append(append(append(p.body, typePrefix...), kind...), `","version":`...)
	p.body = strconv.AppendInt(p.body, Version, 10)
	if visit(p); p.differs {
		return nil
	}
	if p.field(last, len(value) > 0) {
		p.body = append(p.body, value...)
	}
	return append(p.body, '}')
}

// plainRoom estimates the size of an object without its last field.
const plainRoom = 480

// readPlain reads an object of a type, and returns its last field; ok is false when it has to be
// read in another way.
func readPlain(body []byte, kind string, visit func(*plain), last string) (value json.RawMessage, ok bool) {
	fields, closed := bytes.CutSuffix(body, []byte{'}'})
	fields, value, _ = bytes.Cut(fields, []byte(`,"`+last+`":`)) // which no string before it has in it
	p := &plain{rest: string(fields), reads: true, differs: !closed}
	p.literal(typePrefix)
	p.literal(kind)
	p.literal(`","version":`)
	p.literal(strconv.Itoa(Version))
	visit(p)
	return value, !p.differs && p.rest == ""
}

// field writes a name if its value is to be written, or reads it if it comes next, and reports
// whether it did so.
func (p *plain) field(name string, isSet bool) bool {
	if !p.reads {
		if isSet {
			p.body = append(append(append(p.body, `,"`...), name...), `":`...)
		}
		return isSet
	}
	const before, after = len(`,"`), len(`":`)
	end := before + len(name)
	if len(p.rest) < end+after || p.rest[:before] != `,"` || p.rest[before:end] != name || p.rest[end:end+after] != `":` {
		return false
	}
	p.rest = p.rest[end+after:]
	return true
}

// literal writes what comes next, or reads it.
func (p *plain) literal(next string) bool {
	if !p.reads {
		p.body = append(p.body, next...)
		return true
	}
	rest, found := strings.CutPrefix(p.rest, next)
	p.rest, p.differs = rest, p.differs || !found
	return found
}

func (p *plain) quoted(s *string) {
	if !p.reads {
		p.differs = p.differs || !isPlain(*s)
		p.body = append(append(append(p.body, '"'), *s...), '"')
		return
	}
	if p.literal(`"`) {
		text, rest, closed := strings.Cut(p.rest, `"`)
		*s, p.rest = text, rest
		p.differs = p.differs || !closed || !isPlain(text)
	}
}

func (p *plain) text(name string, s *string, empty bool) {
	if p.field(name, *s != "" || empty) {
		p.quoted(s)
	}
}

// token reads a number.
func (p *plain) token() string {
	end := strings.IndexAny(p.rest, ",}")
	if end < 0 {
		end = len(p.rest)
	}
	token := p.rest[:end]
	p.rest = p.rest[end:]
	return token
}

func whole[T ~int | ~int64 | ~uint64](p *plain, name string, n *T) {
	switch {
	case !p.field(name, *n != 0):
	case p.reads:
		token := p.token()
		read, err := strconv.ParseInt(token, 10, strconv.IntSize)
		*n = T(read)
		p.differs = p.differs || err != nil || !isWhole(token)
	default:
		p.body = strconv.AppendInt(p.body, int64(*n), 10)
	}
}

// waits visits an object that is left out if it is empty. Its first field has no comma.
func (p *plain) waits(w *protocol.Waits) {
	if !p.field("waits", *w != protocol.Waits{}) || !p.literal("{") {
		return
	}
	begin := len(p.body)
	if p.reads {
		p.rest = "," + p.rest
	}
	p.number("not_before_ms", &w.NotBeforeMS, ifSet)
	p.number("slot_ms", &w.SlotMS, ifSet)
	p.number("lane_ms", &w.LaneMS, ifSet)
	p.number("after_ms", &w.AfterMS, ifSet)
	p.number("limit_ms", &w.LimitMS, ifSet)
	p.number("rate_ms", &w.RateMS, ifSet)
	p.number("pause_ms", &w.PauseMS, ifSet)
	p.number("lost_ms", &w.LostMS, ifSet)
	p.text("held_by", (*string)(&w.HeldBy), ifSet)
	p.text("held_by_session", (*string)(&w.HeldBySession), ifSet)
	p.text("after_call", (*string)(&w.AfterCall), ifSet)
	p.text("after_session", (*string)(&w.AfterSession), ifSet)
	p.text("limit", &w.Limit, ifSet)
	p.text("lost_worker", (*string)(&w.LostWorker), ifSet)
	if !p.reads {
		p.body = slices.Delete(p.body, begin, begin+1)
	}
	p.literal("}")
}

func (p *plain) number(name string, n *float64, zero bool) {
	switch {
	case !p.field(name, zero || *n != 0):
	case p.reads:
		token := p.token()
		read, err := strconv.ParseFloat(token, 64)
		*n = read
		before, fraction, broken := strings.Cut(token, ".")
		p.differs = p.differs || err != nil || !isWhole(before) || broken && !areDigits(fraction)
	default:
		size := math.Abs(*n)
		p.differs = p.differs || size != 0 && !(size >= 1e-6 && size < 1e21) // with an exponent
		p.body = strconv.AppendFloat(p.body, *n, 'f', -1, 64)
	}
}

func (p *plain) time(name string, t *time.Time, zero bool) {
	if !p.field(name, !t.IsZero() || zero) {
		return
	}
	var err error
	if p.reads {
		var text string
		p.quoted(&text)
		err = t.UnmarshalText([]byte(text))
	} else {
		p.body, err = t.AppendText(append(p.body, '"'))
		p.body = append(p.body, '"')
	}
	p.differs = p.differs || err != nil
}

func (p *plain) uses(name string, uses *[]protocol.Use) {
	p.differs = p.differs || !p.reads && len(*uses) == 0 // null or an empty list
	if !p.field(name, true) {
		return
	}
	for i, before := 0, `[{"key":`; !p.differs; i, before = i+1, `,{"key":` {
		if p.reads {
			*uses = append(*uses, protocol.Use{})
		}
		p.literal(before)
		p.quoted((*string)(&(*uses)[i].Key))
		p.literal(`,"access":`)
		access := &(*uses)[i].Access
		if !p.reads && *access == "" {
			exclusive := protocol.Exclusive
			access = &exclusive
		}
		p.quoted((*string)(access))
		p.literal("}")
		if p.reads && strings.HasPrefix(p.rest, "]") || !p.reads && i == len(*uses)-1 {
			break
		}
	}
	p.literal("]")
}

// isPlain reports whether a string is JSON as it is, between quotes.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// isWhole reports whether a string is a number of JSON without a sign, a fraction or an exponent.
func isWhole(s string) bool { return areDigits(s) && (s[0] != '0' || len(s) == 1) }

func areDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
