// Package webhook notifies receivers over HTTP that a turn or a single call has ended, or that a
// person is waited for. Requests are signed as Standard Webhooks describes it.
//
//	TF_SESSIONS, TF_RESULTS ──► reader ──► TF_WEBHOOKS ────────────────────► sender ──► POST, signed
//	what happened, as ever      durable    hook.ID           URL, secret     durable    2xx: removed
//	                            consumer   wait.ID.EVENT     a reference     consumer   else later, and
//	                                       failed.ID.EVENT   why             of each    failed at last
//
// The streams of journals and results are the truth. Nothing more is written on the path of a call:
// a reader finds what has ended behind it, and stores a reference for each webhook that wants it. A
// reference has no contents: these are read when it is sent, so that nothing of a removed session
// stays here. A process that ends anywhere leaves a message that is not acknowledged, which another
// one gets: an event is sent at least once, with one id. Any number of senders may run at once.
package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// EventType says what has happened.
type EventType string

// The events.
const (
	TurnEnded       EventType = "turn.ended"       // a turn of a session, but of a sub-agent
	CallEnded       EventType = "call.ended"       // a call that no turn has made
	ApprovalWaiting EventType = "approval.waiting" // a person decides whether a call may run
	QuestionWaiting EventType = "question.waiting" // a person answers a question
	// Test is sent by [Store.Test] alone.
	Test EventType = "webhook.test"
)

// Events returns those that a webhook may name.
func Events() []EventType { return []EventType{TurnEnded, CallEnded, ApprovalWaiting, QuestionWaiting} }

// Bounds of webhooks.
const (
	maxURL      = 2000
	maxOfTenant = 16
	maxHooks    = 1000
	// maxWaiting is how many deliveries of a webhook wait. With one more it is paused.
	maxWaiting = 10_000
	// maxCrowded is how many deliveries of all webhooks wait or have failed once their bucket is
	// half full: what the other half has room for.
	maxCrowded = 20_000
	// failedAge is how long a failed delivery is listed and can be sent again.
	failedAge = 3 * 24 * time.Hour
)

// Errors of webhooks.
var (
	ErrInvalid = codes.As(codes.ErrInvalid, errors.New("invalid webhook"))
	ErrUnknown = codes.As(codes.ErrNotFound, errors.New("there is no such webhook"))
)

// Hook is a webhook: a receiver, and the events that it gets.
type Hook struct {
	ID  string `json:"-"`
	URL string `json:"url"`
	// Events are what it gets; none means all.
	Events []EventType `json:"events"`
	// Session is the only session whose events it gets; "" means all of the tenant.
	Session protocol.SessionID `json:"session_id,omitempty"`
	// Tenant is the owner, whose events it gets; [judge.EveryTenant] is the fleet's operator, with
	// the events of all.
	Tenant  protocol.Tenant `json:"tenant"`
	By      string          `json:"by,omitempty"`
	Created time.Time       `json:"created"`
	// Paused says why nothing is sent, and no event is noted.
	Paused string `json:"paused,omitempty"`
	// Secret signs what is sent, as in whsec_BASE64.
	Secret string `json:"secret"`
	// Since is the last message of each source behind which its events begin.
	Since map[string]uint64 `json:"since"`
}

// check reports what is wrong with a webhook that is added.
func (h *Hook) check() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if _, err := h.target(); err != nil {
		fault("%w", err)
	}
	for _, e := range h.Events {
		if !slices.Contains(Events(), e) {
			fault("event %q: must be one of %q", e, Events())
		}
	}
	if h.Session != "" {
		if _, err := protocol.ParseSessionID(string(h.Session)); err != nil {
			fault("%w", err)
		}
	}
	if h.Tenant != "" && h.Tenant != judge.EveryTenant {
		if _, err := protocol.ParseTenant(string(h.Tenant)); err != nil {
			fault("%w", err)
		}
	}
	return errors.Join(faults...)
}

// target is where the webhook connects to. Only loopback addresses are reached without TLS.
func (h *Hook) target() (t egress.Target, err error) {
	if len(h.URL) > maxURL {
		return t, fmt.Errorf("url: %d bytes: must be at most %d", len(h.URL), maxURL)
	}
	u, err := url.Parse(h.URL)
	if err != nil {
		return t, fmt.Errorf("url: %w", errors.Unwrap(err)) // the text has the URL, which may have a secret
	}
	ports := map[string]uint16{"https": 443, "http": 80}
	switch {
	case ports[u.Scheme] == 0 || u.Host == "":
		return t, errors.New("url: must be https://HOST/PATH")
	case u.User != nil || u.Fragment != "":
		return t, errors.New("url: must have no user and no fragment: the signature says who sends")
	}
	if t, err = egress.ParseTarget(u.Host, ports[u.Scheme]); err != nil {
		return t, fmt.Errorf("url: %w", err)
	}
	if u.Scheme == "http" && !t.Addr.IsLoopback() {
		return t, errors.New("url: must be https, except to a loopback address such as 127.0.0.1")
	}
	return t, nil
}

// plain reports whether the webhook is sent without TLS.
func (h *Hook) plain() bool { return strings.HasPrefix(h.URL, "http:") }

// object is the webhook as an object of acts.
func (h *Hook) object() judge.Object {
	return judge.Object{Kind: judge.Webhook, ID: h.ID, Owner: judge.Owner{Tenant: h.Tenant, By: h.By}}
}

// wants reports whether the webhook gets an event of a session.
func (h *Hook) wants(e EventType, session protocol.SessionID) bool {
	return h.Paused == "" && (len(h.Events) == 0 || slices.Contains(h.Events, e)) && (h.Session == "" || h.Session == session)
}

// Store is the fleet's webhooks. It is safe for concurrent use.
type Store struct {
	fleet  *fleet.Fleet
	name   string // of the bucket
	bucket jetstream.KeyValue
	stream jetstream.Stream // of the bucket
}

// Open opens the store, which is made with the replicas of the fleet's journals if it is missing.
func Open(ctx context.Context, f *fleet.Fleet) (*Store, error) {
	store, err := OpenExisting(ctx, f)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		err = natsio.MakeBucket(ctx, f.JS, wire.WebhooksBucket(f.Name), wire.SessionsStream(f.Name), natsio.WebhookBytes, func(c *jetstream.StreamConfig) {
			c.AllowMsgTTL = true
		})
		if err != nil {
			return nil, fmt.Errorf("make the webhooks of the fleet: %w", err)
		}
		return OpenExisting(ctx, f)
	}
	return store, err
}

// OpenExisting is [Open] for a process that only reads: the error wraps
// [jetstream.ErrBucketNotFound] in a fleet that never had a webhook.
func OpenExisting(ctx context.Context, f *fleet.Fleet) (*Store, error) {
	name := wire.WebhooksBucket(f.Name)
	bucket, err := f.JS.KeyValue(ctx, name)
	var stream jetstream.Stream
	if err == nil {
		stream, err = f.JS.Stream(ctx, "KV_"+name)
	}
	if err != nil {
		return nil, fmt.Errorf("open the webhooks of the fleet: %w", err)
	}
	return &Store{f, name, bucket, stream}, nil
}

// subject is that of a key, whose parts are separated by dots.
func (st *Store) subject(parts ...string) string {
	return "$KV." + st.name + "." + strings.Join(parts, ".")
}

// Add stores a webhook, which gets what happens from now on, and makes its id and its secret. The
// error wraps [ErrInvalid].
func (st *Store) Add(ctx context.Context, h Hook) (*Hook, error) {
	own := judge.Of(ctx).Owner()
	h.Tenant, h.By = cmp.Or(h.Tenant, own.Tenant), own.By
	if err := h.check(); err != nil {
		return nil, err
	}
	if err := judge.Judge(ctx, judge.Make, h.object()); err != nil {
		return nil, err
	}
	all, err := st.all(ctx)
	if err != nil {
		return nil, err
	}
	ofTenant := 0
	for _, other := range all {
		if other.Tenant == h.Tenant {
			ofTenant++
		}
	}
	if len(all) >= maxHooks || ofTenant >= maxOfTenant {
		return nil, fmt.Errorf("%w: there are %d webhooks of tenant %s, and %d in all: must be at most %d and %d; remove one",
			ErrInvalid, ofTenant, h.Tenant, len(all), maxOfTenant, maxHooks)
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	h.ID, h.Secret = "wh"+strings.ToLower(rand.Text()), "whsec_"+base64.StdEncoding.EncodeToString(key[:])
	h.Created, h.Paused = time.Now().UTC().Truncate(time.Second), ""
	if h.Since, err = st.positions(ctx); err != nil {
		return nil, err
	}
	body, err := json.Marshal(&h) //nolint:gosec // the bucket has the secret
	if err != nil {
		return nil, err
	}
	err = natsio.UntilKnown(ctx, func(ctx context.Context) error { // the id is new, so a second try replaces the first one
		_, err := st.bucket.Put(ctx, keyHook+h.ID, body)
		return err
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("add webhook: %w", err)
	}
	return &h, nil
}

// keyHook begins the keys of webhooks.
const keyHook = "hook."

// positions are the last messages of all sources.
func (st *Store) positions(ctx context.Context) (map[string]uint64, error) {
	last := map[string]uint64{}
	for name, s := range sources(st.fleet) {
		stream, err := s.js.Stream(ctx, s.stream)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.stream, err)
		}
		last[name] = stream.CachedInfo().State.LastSeq
	}
	return last, nil
}

// all reads all webhooks. One that cannot be read is left out.
func (st *Store) all(ctx context.Context) (map[string]*Hook, error) {
	found := map[string]*Hook{}
	err := natsio.EachLast(ctx, st.fleet.JS, st.stream, []string{st.subject(keyHook + "*")}, false, func(msg jetstream.Msg) error {
		id := strings.TrimPrefix(msg.Subject(), st.subject(keyHook))
		delete(found, id)                            // one that changes meanwhile comes twice
		if msg.Headers().Get("KV-Operation") != "" { // it was removed
			return nil
		}
		if h, err := decode(id, msg.Data()); err == nil {
			found[id] = h
		}
		return nil
	})
	return found, err
}

func decode(id string, body []byte) (*Hook, error) {
	h := &Hook{}
	if err := json.Unmarshal(body, h); err != nil {
		return nil, fmt.Errorf("webhook %s: %w", id, err)
	}
	h.ID = id
	return h, nil
}

// get returns a webhook for an act.
func (st *Store) get(ctx context.Context, act judge.Act, id string) (*Hook, error) {
	value, _, err := natsio.ReadKey(ctx, st.bucket, keyHook+id)
	if err != nil {
		return nil, err
	}
	return judged(ctx, act, id, value)
}

// judged is the webhook of a record for an act; nil is no record.
func judged(ctx context.Context, act judge.Act, id string, record []byte) (*Hook, error) {
	if record == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	h, err := decode(id, record)
	if err == nil {
		err = judge.Judge(ctx, act, h.object())
	}
	return h, err
}

// Listed is a webhook with what became of its deliveries.
type Listed struct {
	Hook
	state

	Waiting int // deliveries that were not made yet, or failed and are tried again
	Failed  int // those that are not tried again
}

// state is what the senders note of a webhook.
type state struct {
	LastError   string    `json:"last_error,omitempty"` // "" after a delivery
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	DeliveredAt time.Time `json:"delivered_at,omitzero"` // to within a minute
}

// MaySee returns the error of a context whose principal may not list webhooks.
func MaySee(ctx context.Context) error {
	return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Webhook, Owner: judge.Of(ctx).Owner()})
}

// List returns the webhooks of the context's principal, the oldest first, without their secrets.
func (st *Store) List(ctx context.Context) ([]Listed, error) {
	if err := MaySee(ctx); err != nil {
		return nil, err
	}
	all, err := st.all(ctx)
	if err != nil {
		return nil, err
	}
	list := []Listed{}
	for _, h := range all {
		if judge.Judge(ctx, judge.Change, h.object()) != nil { // who may see one may change it
			continue
		}
		l := Listed{Hook: *h}
		if l.state, err = st.stateOf(ctx, h.ID); err != nil {
			return nil, err
		}
		if l.Waiting, err = st.waiting(ctx, h.ID); err != nil {
			return nil, err
		}
		about, err := st.stream.Info(ctx, jetstream.WithSubjectFilter(st.subject(keyFailed, h.ID, ">")))
		if err != nil {
			return nil, err
		}
		l.Failed, l.Secret = len(about.State.Subjects), ""
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b Listed) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// stateOf reads what senders have noted of a webhook.
func (st *Store) stateOf(ctx context.Context, id string) (s state, err error) {
	entry, err := st.bucket.Get(ctx, keyState+id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(entry.Value(), &s)
	}
	return s, err
}

// waiting is how many deliveries of a webhook wait.
func (st *Store) waiting(ctx context.Context, id string) (int, error) {
	consumer, err := st.stream.Consumer(ctx, id)
	if errors.Is(err, jetstream.ErrConsumerNotFound) { // no sender has seen it
		about, err := st.stream.Info(ctx, jetstream.WithSubjectFilter(st.subject(keyWait, id, ">")))
		if err != nil {
			return 0, err
		}
		return len(about.State.Subjects), nil
	}
	if err != nil {
		return 0, err
	}
	about := consumer.CachedInfo()
	return int(about.NumPending) + about.NumAckPending, nil //nolint:gosec // a bucket has fewer
}

// crowded reports whether a webhook has as many deliveries as it may have: the tenants share the
// bucket, so once it is half full each webhook has its share of the rest.
func (st *Store) crowded(ctx context.Context, id string, webhooks int) (bool, error) {
	waiting, err := st.waiting(ctx, id)
	if err != nil || waiting >= maxWaiting {
		return true, err
	}
	about, err := st.stream.Info(ctx, jetstream.WithSubjectFilter(st.subject(keyFailed, id, ">")))
	if err != nil || about.State.Bytes < natsio.WebhookBytes/2 {
		return false, err
	}
	return waiting+len(about.State.Subjects) >= maxCrowded/webhooks, nil
}

// Parts of the subjects of a webhook's deliveries, and the key of what became of them.
const (
	keyWait   = "wait"
	keyFailed = "failed"
	keyState  = "state."
)

// Failure is a delivery that is not tried again.
type Failure struct {
	Event    string    `json:"event"` // its id
	Type     EventType `json:"type"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
	// Tenant is the owner of what the event is about.
	Tenant protocol.Tenant `json:"tenant"`

	reference reference
	sequence  uint64
}

// Failures returns the failed deliveries of a webhook, the earliest first.
func (st *Store) Failures(ctx context.Context, id string) ([]Failure, error) {
	if _, err := st.get(ctx, judge.Change, id); err != nil {
		return nil, err
	}
	return st.failures(ctx, id)
}

func (st *Store) failures(ctx context.Context, id string) ([]Failure, error) {
	found := map[string]Failure{}
	err := natsio.EachLast(ctx, st.fleet.JS, st.stream, []string{st.subject(keyFailed, id, ">")}, false, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if err != nil {
			return err
		}
		var f Failure
		ref, known := st.referenceOf(msg.Subject())
		if known && json.Unmarshal(msg.Data(), &f) == nil {
			ref.note = note{f.Type, f.Tenant}
			f.Event, f.reference, f.sequence = ref.eventID(), ref, about.Sequence.Stream
			found[f.Event] = f
		}
		return nil
	})
	return slices.SortedFunc(maps.Values(found), func(a, b Failure) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Event, b.Event)) }), err
}

// Remove removes a webhook with its deliveries. One that is being made may still arrive.
func (st *Store) Remove(ctx context.Context, id string) error {
	if _, err := st.get(ctx, judge.Remove, id); err != nil {
		return err
	}
	if err := natsio.UntilKnown(ctx, func(ctx context.Context) error { return st.bucket.Purge(ctx, keyHook+id) }, nil); err != nil {
		return err
	}
	return st.clean(ctx, id)
}

// clean removes what is left of a removed webhook. Senders do it, too: the process that has removed
// the webhook may have ended before.
func (st *Store) clean(ctx context.Context, id string) error {
	err := st.stream.DeleteConsumer(ctx, id)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = nil
	}
	for _, subject := range []string{st.subject(keyWait, id, ">"), st.subject(keyFailed, id, ">"), st.subject(keyState + id)} {
		err = errors.Join(err, st.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)))
	}
	return err
}

// Resume continues a paused webhook with what happens from now on, and sends the failed deliveries
// again; it returns their number.
func (st *Store) Resume(ctx context.Context, id string) (again int, err error) {
	if err := st.change(ctx, id, func(ctx context.Context, h *Hook) (changed bool, err error) {
		if h.Paused == "" {
			return false, nil
		}
		h.Paused = ""
		h.Since, err = st.positions(ctx)
		return true, err
	}); err != nil {
		return 0, err
	}
	failed, err := st.failures(ctx, id)
	for _, f := range failed {
		if err == nil {
			err = st.note(ctx, id, f.reference)
		}
		if err == nil { // if the process ends before, it is sent and listed, too
			err = st.forget(ctx, st.subject(keyFailed, id, f.reference.key()), f.sequence)
		}
		if err != nil {
			break
		}
		again++
	}
	return again, err
}

// forget deletes a message of a subject, and what was there before.
func (st *Store) forget(ctx context.Context, subject string, sequence uint64) error {
	return st.stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(sequence+1))
}

// pause pauses a webhook.
func (st *Store) pause(ctx context.Context, id, why string) error {
	return st.change(ctx, id, func(_ context.Context, h *Hook) (bool, error) {
		paused := h.Paused != ""
		h.Paused = why
		return !paused, nil
	})
}

// change stores a webhook as a function has changed it, if that reports so.
func (st *Store) change(ctx context.Context, id string, by func(context.Context, *Hook) (bool, error)) error {
	return natsio.ChangeKey(ctx, st.bucket, keyHook+id, func(stored []byte) ([]byte, error) {
		h, err := judged(ctx, judge.Change, id, stored)
		if err != nil {
			return nil, err
		}
		if changed, err := by(ctx, h); err != nil || !changed {
			return nil, err
		}
		return json.Marshal(h) //nolint:gosec // as above
	})
}

// Test notes an event for a webhook alone, and returns its id.
func (st *Store) Test(ctx context.Context, id string) (event string, err error) {
	h, err := st.get(ctx, judge.Change, id)
	if err != nil {
		return "", err
	}
	ref := reference{source: sourceTest, sequence: uint64(time.Now().UnixMicro()), note: note{Test, h.Tenant}}
	return ref.eventID(), st.note(ctx, id, ref)
}

// Pending reports whether a delivery waits, and what the senders have noted of its webhook.
func (st *Store) Pending(ctx context.Context, id, event string) (waits bool, lastError string, err error) {
	if _, err := st.get(ctx, judge.Change, id); err != nil {
		return false, "", err
	}
	key := strings.ReplaceAll(strings.TrimPrefix(event, eventPrefix), "_", ".")
	if _, err = st.bucket.Get(ctx, keyWait+"."+id+"."+key); errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, "", nil
	}
	s, stateErr := st.stateOf(ctx, id)
	return true, s.LastError, errors.Join(err, stateErr)
}

// note is the body of a reference.
type note struct {
	Event  EventType       `json:"event"`
	Tenant protocol.Tenant `json:"tenant"`
}

// reference names an event by the message of a source that has it, and the index there.
type reference struct {
	source   string
	sequence uint64
	index    int
	note
}

const eventPrefix = "evt_"

func (r reference) key() string {
	return r.source + "." + strconv.FormatUint(r.sequence, 10) + "." + strconv.Itoa(r.index)
}

// eventID is the webhook-id of the event: the same for each attempt and each webhook.
func (r reference) eventID() string { return eventPrefix + strings.ReplaceAll(r.key(), ".", "_") }

// referenceOf reads the subject of a delivery.
func (st *Store) referenceOf(subject string) (r reference, ok bool) {
	parts := strings.Split(strings.TrimPrefix(subject, st.subject("")), ".")
	if len(parts) != 5 {
		return r, false
	}
	sequence, err := strconv.ParseUint(parts[3], 10, 64)
	index, indexErr := strconv.Atoi(parts[4])
	return reference{source: parts[2], sequence: sequence, index: index}, err == nil && indexErr == nil
}

// note stores a reference for a webhook, unless it is stored.
func (st *Store) note(ctx context.Context, id string, r reference) error {
	body, err := json.Marshal(r.note)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: st.subject(keyWait, id, r.key()), Data: body}
	err = natsio.UntilKnown(ctx, func(ctx context.Context) error {
		_, err := st.fleet.JS.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
		if natsio.OutcomeOf(err) == natsio.Conflict {
			return nil
		}
		return err
	}, nil)
	if err != nil {
		return fmt.Errorf("note event %s for webhook %s: %w", r.eventID(), id, err)
	}
	return nil
}

// source is a stream that has events.
type source struct {
	name   string
	js     jetstream.JetStream
	stream string
	filter string
}

// sourceTest is the source of the events of [Store.Test].
const sourceTest = "test"

// sources are the streams of a fleet that have events: the journals, and the results of each part,
// which has the name of its first pool.
func sources(f *fleet.Fleet) map[string]source {
	results := wire.ResultSubject(f.Name, "*", "*")
	all := map[string]source{
		"s": {"s", f.JS, wire.SessionsStream(f.Name), ""},
		"r": {"r", f.JS, wire.ResultsStream(f.Name), results},
	}
	named := map[*fleet.Fleet]bool{f: true}
	for _, pool := range slices.Sorted(maps.Keys(f.Pools)) {
		if part := f.Pools[pool]; !named[part] {
			named[part] = true
			name := "r-" + string(pool)
			all[name] = source{name, part.JS, wire.ResultsStream(f.Name), results}
		}
	}
	return all
}

// listed are the addresses that a list of hosts names: these alone need not be public.
func listed(allow egress.Allow) (private []netip.Prefix) {
	for _, t := range allow.Targets() {
		if t.Addr.IsValid() {
			private = append(private, netip.PrefixFrom(t.Addr, t.Addr.BitLen()))
		}
	}
	return private
}
