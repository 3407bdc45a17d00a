// Package schedule starts turns and calls at set times: once for each time, however many
// coordinators run.
//
// A schedule is a record in a key-value bucket of the fleet. Every coordinator watches the bucket
// and starts what is due. The id of a call derives from the record's secret and the due time, so
// the calls of all coordinators for one time are one call, which the lane engine runs once. After
// that, the record's last time moves on by compare-and-set. A coordinator that dies in between
// leaves the time due; another one then sends the same call again.
//
// A trigger is a schedule that a session has set with a tool ([Schedule].By). It may start its only
// call at a time or at a message of a channel; it is removed then. The secret of a trigger
// derives from the journal of its session, and the id of the only call from nothing else: a trigger
// that is added once more by a resumed session, when it has started its call and is removed, starts
// the same call.
//
// Coordinators sign what they start. So a coordinator with a key starts only what the same key has
// signed, and turns in sessions of the default tenant, whose tool calls are judged when they are
// made.
//
// JetStream can deliver a message at set times itself. That does not fit: it would deliver the same
// body each time, and so the same call id under the same signature.
package schedule

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/robfig/cron/v3"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Missed says what becomes of times at which no coordinator ran.
type Missed string

// The rules for missed times.
const (
	MissedOnce Missed = "once" // the latest missed time is started late; the default
	MissedSkip Missed = "skip" // none is started
	MissedAll  Missed = "all"  // each is started late, the earliest first, at most MaxMissed
)

// MaxMissed is how many missed times [MissedAll] starts; earlier ones are skipped.
const MaxMissed = 100

// grace is how late a time is started without counting as missed.
const grace = time.Minute

// maxCron is the longest text of times, in bytes.
const maxCron = 200

// Errors of [Store].
var (
	ErrExists  = codes.As(codes.ErrExists, errors.New("the schedule exists, and schedule rm removes it"))
	ErrUnknown = codes.As(codes.ErrNotFound, errors.New("there is no such schedule"))
	ErrInvalid = codes.As(codes.ErrInvalid, errors.New("invalid schedule"))
)

// Schedule is a record: a call, and when it starts.
type Schedule struct {
	// Name has 1 to 64 letters, digits, '-' and '_'.
	Name string `json:"name"`
	// Cron has the five fields of crontab(5), or is @hourly, @daily, @weekly, @monthly, @yearly or
	// "@every DURATION".
	Cron string `json:"cron"`
	// TimeZone is a name of the IANA database; "" means UTC. A local time that clocks show twice
	// starts once, at first, and one that they skip starts at the change, see [local].
	TimeZone string `json:"time_zone,omitempty"`
	Missed   Missed `json:"missed,omitempty"`
	Paused   bool   `json:"paused,omitempty"`
	// Call is what starts: a turn, or with KeepSession any other call. Its id, and its session
	// unless KeepSession is set, derive from the secret and the time.
	Call        protocol.Call `json:"-"`
	KeepSession bool          `json:"keep_session,omitempty"`
	// Signature is that of [Store].Signer over all but Paused, Resumed and Last; "" without one.
	Signature string `json:"signature,omitempty"`
	Trigger
	marks
	// Secret keeps others from storing results of future calls in advance.
	Secret string `json:"secret"`

	parsed
}

// Trigger is what a schedule has that a session has set.
type Trigger struct {
	// Once is when the only call starts. Cron is empty then.
	Once time.Time `json:"once,omitzero"`
	// Channel is the channel, TENANT.NAME, that starts the only call by a message behind After. One
	// of the session itself does not count. Cron and Once are empty then.
	Channel string `json:"channel,omitempty"`
	After   uint64 `json:"after,omitempty"`
	// By is the tool call by which a session has set the schedule; "" if a user has added it.
	By protocol.CallID `json:"by,omitempty"`
}

// marks are the times after which others start.
type marks struct {
	Created time.Time `json:"created"`
	Resumed time.Time `json:"resumed,omitzero"` // for the last time
	Last    time.Time `json:"last,omitzero"`    // that was started or skipped
}

// parsed is what the store adds to a schedule that it reads.
type parsed struct {
	revision uint64
	times    cron.Schedule
	zone     *time.Location
	wakes    time.Time // when the runner looks at it again
	looked   bool      // no message has come to its channel since the runner looked
	ended    bool      // its only call was started, and its record is removed
	bound    bool      // it is not signed, and may start turns in sessions of the default tenant only
}

// single reports whether the schedule starts one call and is removed then.
func (s *Schedule) single() bool { return s.Channel != "" || !s.Once.IsZero() }

// parse checks the record and reads its times. Errors wrap [ErrInvalid].
func (s *Schedule) parse() error {
	if _, err := protocol.ParseSessionID(s.Name); err != nil { // the same alphabet and length
		return fmt.Errorf("%w: name %q: must be 1 to 64 letters, digits, '-' and '_'", ErrInvalid, s.Name)
	}
	if !slices.Contains([]Missed{"", MissedOnce, MissedSkip, MissedAll}, s.Missed) {
		return fmt.Errorf("%w: missed %q: must be %s, %s or %s", ErrInvalid, s.Missed, MissedOnce, MissedSkip, MissedAll)
	}
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil || s.TimeZone == "Local" {
		return fmt.Errorf("%w: time zone %q: must be a name of the IANA database, such as Europe/Berlin", ErrInvalid, s.TimeZone)
	}
	s.zone = zone
	if len(s.Cron) > maxCron {
		return fmt.Errorf("%w: cron: %d bytes: must be at most %d", ErrInvalid, len(s.Cron), maxCron)
	}
	if err := s.checkCall(); err != nil {
		return err
	}
	if s.single() {
		if s.Cron != "" || s.Channel != "" && !s.Once.IsZero() || !s.KeepSession {
			return fmt.Errorf("%w: a schedule of one call has a time or a channel, and a session", ErrInvalid)
		}
		s.times = once{s.Once}
		return nil
	}
	if strings.Contains(s.Cron, "TZ=") {
		return fmt.Errorf("%w: cron %q: give the time zone by itself", ErrInvalid, s.Cron)
	}
	times, err := cron.ParseStandard(s.Cron)
	if err != nil {
		return fmt.Errorf("%w: cron %q: %v", ErrInvalid, s.Cron, strings.TrimPrefix(err.Error(), "failed to parse "))
	}
	switch times := times.(type) {
	case *cron.SpecSchedule:
		s.times = inZone(times, zone)
	case cron.ConstantDelaySchedule:
		if _, period, _ := strings.Cut(s.Cron, " "); !wholeSeconds(period) {
			return fmt.Errorf("%w: cron %q: must be whole seconds, at least 1s", ErrInvalid, s.Cron)
		}
		s.times = every{start: s.Created, period: times.Delay}
		return nil
	}
	if s.times.Next(time.Now()).IsZero() {
		return fmt.Errorf("%w: cron %q: there is no such day in the next five years", ErrInvalid, s.Cron)
	}
	return nil
}

// checkCall checks that what starts is a turn of a session, or a call of workers.
func (s *Schedule) checkCall() error {
	call := &s.Call
	key := protocol.ResourceKey("session/" + string(call.SessionID))
	switch {
	case s.isTurn() && call.Pool == protocol.SessionPool && len(call.Resources) == 1 && call.Resources[0].Key == key:
		return nil
	case s.isTurn() || call.Pool == protocol.SessionPool || s.single() || !s.KeepSession:
		return fmt.Errorf("%w: a schedule starts turns of sessions or calls of workers, and a trigger turns", ErrInvalid)
	case !call.NotBefore.IsZero() || !call.Deadline.IsZero() || len(call.After) > 0:
		return fmt.Errorf("%w: call: must have no not_before, deadline and after", ErrInvalid)
	}
	return nil
}

// object is the schedule, or the trigger, as an object of acts. Its owner is that of its call.
func (s *Schedule) object() judge.Object {
	kind := judge.Schedule
	if s.By != "" {
		kind = judge.Trigger
	}
	return judge.Object{Kind: kind, ID: s.Name, Owner: judge.Owner{Tenant: s.Call.Tenant, By: s.Call.By}}
}

func (s *Schedule) isTurn() bool {
	_, turn := s.Call.Payload.(wire.TurnRun)
	return turn
}

// signed is what a signature of the record signs.
func (s *Schedule) signed() ([]byte, error) {
	fixed := *s
	fixed.Paused, fixed.Resumed, fixed.Last, fixed.Signature = false, time.Time{}, time.Time{}, ""
	return encode(&fixed)
}

// record is a schedule as it is stored.
type record struct {
	Schedule

	Call json.RawMessage `json:"call"` // as [wire.EncodeCall] writes it
}

// Next returns the next n times after t, in the schedule's time zone.
func (s *Schedule) Next(t time.Time, n int) []time.Time {
	var next []time.Time
	for range n {
		if t = s.times.Next(t); t.IsZero() {
			break
		}
		next = append(next, t.In(s.zone))
	}
	return next
}

// due returns the times that must start now, and the latest time up to now; that is zero when none
// has come since the last one.
func (s *Schedule) due(now time.Time) (start []time.Time, last time.Time) {
	if !s.Once.IsZero() { // also one that was over when the record was stored
		if now.Before(s.Once) {
			return nil, time.Time{}
		}
		return []time.Time{s.Once}, s.Once
	}
	after := slices.MaxFunc([]time.Time{s.Created, s.Resumed, s.Last}, time.Time.Compare)
	for t := s.times.Next(after); !t.IsZero() && !t.After(now); t = s.times.Next(t) {
		last = t
		start = append(start, t)
		if len(start) > MaxMissed {
			start = start[1:]
		}
	}
	if s.Missed == MissedAll {
		return start, last
	}
	late := func(t time.Time) bool { return t.Before(now.Add(-grace)) }
	inTime := slices.DeleteFunc(slices.Clone(start), late)
	if len(inTime) == 0 && s.Missed != MissedSkip && len(start) > 0 {
		inTime = start[len(start)-1:]
	}
	return inTime, last
}

// At returns the call of one time.
func (s *Schedule) At(t time.Time) protocol.Call {
	number := t.UTC().Format(time.RFC3339Nano)
	if s.single() {
		number = "1"
	}
	derive := func(what string) string {
		space := uuid.NewSHA1(uuid.NameSpaceOID, []byte("toolfleet/schedule/"+s.Name))
		return uuid.NewHash(hmac.New(sha256.New, []byte(s.Secret)), space, []byte(what+"/"+number), 8).String()
	}
	call := s.Call
	call.ID = protocol.CallID(derive("call"))
	if !s.KeepSession {
		old := call.SessionID
		call.SessionID = protocol.SessionID(derive("session"))
		call.Resources = slices.Clone(call.Resources)
		for i := range call.Resources {
			call.Resources[i].Key = protocol.ResourceKey(strings.Replace(string(call.Resources[i].Key), string(old), string(call.SessionID), 1))
		}
	}
	if turn, is := call.Payload.(wire.TurnRun); is && turn.Trigger == nil {
		turn.Trigger = &wire.TurnTrigger{Name: s.Name}
		call.Payload = turn
	}
	call.IssuedAt = t.UTC()
	call.Again = true // another coordinator may have sent it
	if !s.isTurn() {
		call.Digest, _ = wire.DigestOf(&call) // as of a single call with an id of its own; the payload was encoded before
	}
	return call
}

// Store is the fleet's schedules. It is safe for concurrent use.
type Store struct {
	// Signer signs calls that are added, and a [Runner] starts those alone that it has signed; nil
	// where calls are not signed. It is not changed while the store is used, and neither is Strict:
	// with it a [Runner] starts turns, too, only if Signer has signed their records.
	Signer *signing.Signer
	Strict bool

	fleet  protocol.Fleet
	js     jetstream.JetStream
	bucket jetstream.KeyValue
	stream jetstream.Stream // of the bucket
	index  index
}

// Open opens the store, which is made with the replicas of the fleet's journals if it is missing.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	store, err := OpenExisting(ctx, js, fleet)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		err = natsio.MakeBucket(ctx, js, wire.SchedulesBucket(fleet), wire.SessionsStream(fleet), natsio.ScheduleBytes, func(c *jetstream.StreamConfig) {
			c.DenyDelete = true
		})
		if err != nil {
			return nil, fmt.Errorf("make the schedules of the fleet: %w", err)
		}
		return OpenExisting(ctx, js, fleet)
	}
	return store, err
}

// OpenExisting is [Open] for a process that only reads: the error wraps
// [jetstream.ErrBucketNotFound] in a fleet that never had a schedule.
func OpenExisting(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	name := wire.SchedulesBucket(fleet)
	bucket, err := js.KeyValue(ctx, name)
	var stream jetstream.Stream
	if err == nil {
		stream, err = js.Stream(ctx, "KV_"+name)
	}
	if err != nil {
		return nil, fmt.Errorf("open the schedules of the fleet: %w", err)
	}
	return &Store{fleet: fleet, js: js, bucket: bucket, stream: stream}, nil
}

// Add stores a new schedule, which starts at its next time. Errors wrap [ErrInvalid] or
// [ErrExists].
func (st *Store) Add(ctx context.Context, s Schedule) (*Schedule, error) {
	s.Cron = strings.Join(strings.Fields(s.Cron), " ")
	s.Created, s.Last, s.Secret = time.Now().UTC().Truncate(time.Second), time.Time{}, wire.NewSeed()
	if err := s.parse(); err != nil {
		return nil, err
	}
	if _, err := s.Next(s.Created, 1), s.Call.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	s.Call.By = ""
	s.Call = wire.ApplyFlow(ctx, []protocol.Call{s.Call})[0]
	if err := judge.Judge(ctx, judge.Make, s.object()); err != nil {
		return nil, err
	}
	if err := st.sign(&s); err != nil {
		return nil, err
	}
	body, err := encode(&s)
	if err != nil {
		return nil, err
	}
	err = natsio.UntilKnown(ctx, func(ctx context.Context) error {
		_, err := st.bucket.Create(ctx, s.Name, body)
		return err
	}, func(ctx context.Context) (bool, error) {
		stored, err := st.get(ctx, s.Name)
		if errors.Is(err, ErrUnknown) {
			return false, nil
		}
		return err == nil && stored.Secret == s.Secret, err // the secret says whose record it is
	})
	switch {
	case errors.Is(err, natsio.ErrUnknown):
		err = fmt.Errorf("add schedule %s: %w (schedule ls shows it)", s.Name, err)
	case errors.Is(err, jetstream.ErrKeyExists):
		err = fmt.Errorf("%w: %s", ErrExists, s.Name)
	case errors.Is(err, nats.ErrMaxPayload):
		err = fmt.Errorf("%w: call: %d bytes: larger than a message may be (max_payload)", ErrInvalid, len(body))
	}
	return &s, err
}

// AddTrigger stores a schedule that the tool call By of a session sets, whose Secret is set. A call
// that adds it once more changes nothing, also when the trigger was removed a day ago or less.
func (st *Store) AddTrigger(ctx context.Context, s Schedule) error {
	s.Cron = strings.Join(strings.Fields(s.Cron), " ")
	s.Created, s.Last = time.Now().UTC(), time.Time{}
	if err := s.parse(); err != nil {
		return err
	}
	if err := s.Call.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := judge.Judge(ctx, judge.Make, s.object()); err != nil {
		return err
	}
	if err := st.sign(&s); err != nil {
		return err
	}
	s.revision = 0 // nothing was ever stored under the name; the mark of a removed record counts
	err := natsio.UntilKnown(ctx, func(ctx context.Context) error {
		err := st.update(ctx, &s)
		if natsio.OutcomeOf(err) == natsio.Conflict { // by an earlier try
			return nil
		}
		return err
	}, nil)
	if err != nil {
		return fmt.Errorf("store trigger %s: %w", s.Name, err)
	}
	return nil
}

// Triggers returns the schedules that a session has set, the earliest first. Where a [Runner] of
// the store runs it does not read the other schedules.
func (st *Store) Triggers(ctx context.Context, session protocol.SessionID) ([]*Schedule, error) {
	last, err := st.last(ctx)
	if err != nil {
		return nil, err
	}
	all, current := st.index.of(ctx, session, last)
	if !current {
		if all, err = st.List(ctx); len(all) == 0 && err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(s *Schedule) bool { return s.By == "" || s.Call.SessionID != session })
	}
	slices.SortFunc(all, func(a, b *Schedule) int { return a.Created.Compare(b.Created) })
	return all, nil // records that cannot be read are of no session
}

// Of returns the schedules that begin turns of a session or calls in its sandbox: its triggers, and
// those of users. Others are read too, so it costs more than [Store.Triggers].
func (st *Store) Of(ctx context.Context, session protocol.SessionID) ([]*Schedule, error) {
	all, err := st.List(ctx)
	if len(all) == 0 && err != nil {
		return nil, err
	}
	lane := protocol.SandboxKey(string(session)).Lane()
	return slices.DeleteFunc(all, func(s *Schedule) bool {
		return !s.KeepSession || s.Call.SessionID != session && s.Call.Lane() != lane
	}), nil // records that cannot be read are of no session
}

// last is the sequence of the latest change of any schedule.
func (st *Store) last(ctx context.Context) (uint64, error) {
	info, err := st.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("look into the schedules of the fleet: %w", err)
	}
	return info.State.LastSeq, nil
}

// Get returns a schedule. The error wraps [ErrUnknown].
func (st *Store) Get(ctx context.Context, name string) (*Schedule, error) {
	s, err := st.get(ctx, name)
	if err == nil {
		err = judge.Judge(ctx, judge.See, s.object())
	}
	return s, err
}

func (st *Store) get(ctx context.Context, name string) (*Schedule, error) {
	entry, err := st.bucket.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, name)
	}
	if err != nil {
		return nil, err
	}
	return decode(entry.Key(), entry.Value(), entry.Revision())
}

func encode(s *Schedule) ([]byte, error) {
	call, err := wire.EncodeCall(&s.Call)
	if err != nil {
		return nil, err
	}
	return json.Marshal(record{*s, call})
}

func decode(name string, body []byte, revision uint64) (*Schedule, error) {
	var r record
	err := json.Unmarshal(body, &r)
	if err == nil {
		var call *protocol.Call
		if call, err = wire.DecodeCall(r.Call); err == nil {
			r.Schedule.Call, r.revision = *call, revision
			err = r.parse()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("schedule %s: %w", name, err)
	}
	return &r.Schedule, nil
}

// sign signs a record that is added.
func (st *Store) sign(s *Schedule) error {
	if st.Signer == nil {
		return nil
	}
	record, err := s.signed()
	if err == nil {
		s.Signature = st.Signer.SignRecord(st.fleet, signing.KindSchedule, record)
	}
	return err
}

// checkSigned returns an error for a record that the store's signer has not signed, unless it is a
// turn of the default tenant and Strict is not set: others may add one, which is bound to that
// tenant.
func (st *Store) checkSigned(s *Schedule) error {
	if st.Signer == nil {
		return nil
	}
	record, err := s.signed()
	if err != nil || st.Signer.HasSigned(st.fleet, signing.KindSchedule, record, s.Signature) {
		return err
	}
	if s.bound = s.isTurn() && !st.Strict && cmp.Or(s.Call.Tenant, wire.DefaultTenant) == wire.DefaultTenant; !s.bound {
		err = fmt.Errorf("schedule %s: its call is not signed with key %s of this coordinator; add it again with that key (--sign-key)", s.Name, st.Signer.ID())
	}
	return err
}

// List returns all schedules, sorted by name. Records that cannot be read are in the error, beside
// the others.
func (st *Store) List(ctx context.Context) ([]*Schedule, error) {
	return st.read(ctx, st.subject(">"))
}

// Page is List for the first schedules whose names come after one, at most limit of them; leftOut
// is how many more come after these. If more than another page comes, it also counts those that
// were removed a moment ago. Page reads names, and the records of its schedules; all records, if
// not all schedules may be seen.
func (st *Store) Page(ctx context.Context, after string, limit int) (list []*Schedule, leftOut int, err error) {
	if judge.Bounded(ctx) {
		list, err = st.List(ctx)
		list = slices.DeleteFunc(list, func(s *Schedule) bool { return s.Name <= after })
		shown := min(len(list), limit)
		return list[:shown], len(list) - shown, err
	}
	info, err := st.stream.Info(ctx, jetstream.WithSubjectFilter(st.subject(">")))
	if err != nil {
		return nil, 0, err
	}
	rest := slices.Sorted(maps.Keys(info.State.Subjects))
	rest = slices.DeleteFunc(rest, func(subject string) bool { return subject <= st.subject(after) })
	for len(list) < limit && len(rest) > 0 && err == nil {
		var found []*Schedule
		n := min(limit-len(list), len(rest)) // less, where some of them were removed
		found, err = st.read(ctx, rest[:n]...)
		list, rest = append(list, found...), rest[n:]
	}
	if leftOut = len(rest); leftOut == 0 || leftOut > limit || err != nil {
		return list, leftOut, err
	}
	there := map[string]bool{}
	err = natsio.EachLast(ctx, st.js, st.stream, rest, true, func(msg jetstream.Msg) error {
		there[msg.Subject()] = msg.Headers().Get("KV-Operation") == "" // else it was removed
		return nil
	})
	maps.DeleteFunc(there, func(_ string, in bool) bool { return !in })
	return list, len(there), err
}

// subject is that of the record of a schedule.
func (st *Store) subject(name string) string { return "$KV." + st.bucket.Bucket() + "." + name }

// read reads schedules by their subjects, which may have wildcards.
func (st *Store) read(ctx context.Context, subjects ...string) ([]*Schedule, error) {
	found, failures := map[string]*Schedule{}, map[string]error{}
	err := natsio.EachLast(ctx, st.js, st.stream, subjects, false, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(msg.Subject(), st.subject(""))
		delete(found, name) // one that changes meanwhile comes twice
		delete(failures, name)
		if msg.Headers().Get("KV-Operation") != "" { // it was removed
			return nil
		}
		if s, err := decode(name, msg.Data(), about.Sequence.Stream); err != nil {
			failures[name] = err
		} else if judge.Judge(ctx, judge.See, s.object()) == nil {
			found[name] = s
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b *Schedule) int { return cmp.Compare(a.Name, b.Name) })
	var unreadable []error
	if judge.Bounded(ctx) { // whose they are is not known
		clear(failures)
	}
	for _, name := range slices.Sorted(maps.Keys(failures)) {
		unreadable = append(unreadable, failures[name])
	}
	return all, errors.Join(unreadable...)
}

// Remove removes a schedule. Calls that have started go on. The error wraps [ErrUnknown].
func (st *Store) Remove(ctx context.Context, name string) error {
	s, err := st.get(ctx, name)
	if err == nil {
		err = judge.Judge(ctx, judge.Remove, s.object())
	}
	if errors.Is(err, ErrUnknown) || errors.Is(err, judge.ErrRefused) || err != nil && judge.Bounded(ctx) { // the owner of another record is not known
		return err
	}
	return natsio.UntilKnown(ctx, func(ctx context.Context) error { return st.bucket.Purge(ctx, name) }, nil)
}

// Pause stops or resumes a schedule. Times that pass while it is paused are skipped.
func (st *Store) Pause(ctx context.Context, name string, paused bool) (*Schedule, error) {
	for {
		s, err := st.get(ctx, name)
		if err == nil {
			err = judge.Judge(ctx, judge.Change, s.object())
		}
		if err != nil || s.Paused == paused {
			return s, err
		}
		if s.Paused = paused; !paused {
			s.Resumed = time.Now().UTC()
		}
		err = natsio.UntilKnown(ctx, func(ctx context.Context) error { return st.update(ctx, s) }, func(ctx context.Context) (bool, error) {
			stored, err := st.get(ctx, name)
			return err == nil && stored.Paused == paused, err
		})
		if natsio.OutcomeOf(err) != natsio.Conflict {
			return s, err
		}
	}
}

// update stores a record if nobody has changed it since it was read.
func (st *Store) update(ctx context.Context, s *Schedule) error {
	body, err := encode(s)
	if err != nil {
		return err
	}
	revision, err := st.bucket.Update(ctx, s.Name, body, s.revision)
	if err == nil {
		s.revision = revision
	}
	return err
}

// errChanged means that the stored record is another one.
var errChanged = errors.New("the schedule was changed or removed")

// unchanged returns an error, errChanged if it is one, unless a record is stored as it was read.
func (st *Store) unchanged(ctx context.Context, s *Schedule) error {
	stored, err := st.get(ctx, s.Name)
	if errors.Is(err, ErrUnknown) || err == nil && stored.revision != s.revision {
		return errChanged
	}
	return err
}

// changedMeanwhile reports whether an operation failed because the record has changed, or, with
// replicas, is about to.
func changedMeanwhile(err error) bool {
	return errors.Is(err, errChanged) || natsio.Overtaken(err)
}

// forget deletes the mark of a removed record, unless there is a record again.
func (st *Store) forget(ctx context.Context, mark jetstream.KeyValueEntry) error {
	return st.stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+st.bucket.Bucket()+"."+mark.Key()), jetstream.WithPurgeSequence(mark.Revision()+1))
}
