package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors that callers branch on.
var (
	// ErrLost says that another worker has taken the workspace.
	ErrLost = errors.New("the workspace was taken by another worker")
	// ErrFull says that the fleet has no room for a commit.
	ErrFull = errors.New("the fleet has no room for the workspace")
	// ErrInvalid says that a journal has what no worker writes.
	ErrInvalid = errors.New("the journal of the workspace is not valid")
	// ErrMissing says that contents of a workspace are not in the store of bodies.
	ErrMissing = errors.New("contents of the workspace are missing in the store of bodies")
	// ErrAway says that the store of bodies was asked for as long as a body may take, and gave no
	// answer.
	ErrAway = errors.New("the store of bodies is away")
)

const (
	opTimeout   = 5 * time.Second  // of one request
	bodyTimeout = 2 * time.Minute  // of one body, with all tries
	firstTry    = 2 * time.Second  // of them
	refresh     = 20 * time.Minute // a body that is older is stored again, lest it is removed as garbage meanwhile
	keepAfter   = 15 * time.Minute // a body that was stored so long before its checkpoint is renewed
)

// Store is where the workspaces of a fleet are kept. It is safe for concurrent use.
type Store struct {
	fleet  protocol.Fleet
	js     jetstream.JetStream
	stream jetstream.Stream
	bodies bodies
	waits  time.Duration // for a store of bodies that is away

	mu      sync.Mutex
	renewed map[string]time.Time // bodies, and when this process began to store or renew each of them last
}

// Open opens the store of a fleet, whose streams must exist. url is where this process may send
// contents, and the credentials of the store: what the fleet says of another S3 store is an error
// that wraps [ErrUnknownStore].
func Open(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, url string) (*Store, error) {
	s, err := openJournals(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	if s.bodies, err = openBodies(ctx, s.js, fleet, url); err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	return s, nil
}

const (
	// headerBodies of a checkpoint names the bodies that no earlier checkpoint needs, so that
	// unused bodies are found without reading checkpoints.
	headerBodies = "Toolfleet-Bodies"
	// headerNames of a checkpoint of many bodies says where their names are: the parts of a text in
	// bodies, as JSON. [headerBodies] has the names of these bodies alone.
	headerNames = "Toolfleet-Body-Names"
	// headerLane of a checkpoint is the name of the lane, escaped as in a URL: subjects have only
	// its hash. Uploads, templates and checkpoints of earlier versions have none.
	headerLane = "Toolfleet-Lane"
)

// checkpoint is a message of a journal.
type checkpoint struct {
	Type    string `json:"type"` // "checkpoint"
	Version int    `json:"version"`
	// Epoch is that of the claim of the lane.
	Epoch uint64 `json:"epoch"`
	// Disk is the disk of its writer, and Token identifies its checkpoint.
	Disk  string `json:"disk"`
	Token string `json:"token"`
	// Calls are those that ended, and Results the results of all that the journal covers and that
	// may not be stored yet. Both are empty when the workspace was taken.
	Calls   []protocol.CallID `json:"calls,omitempty"`
	Results []covered         `json:"results,omitempty"`
	// Base is the whole tree; without it Delta says what changed. From is the sequence of the last
	// checkpoint with a base, 0 when there is none.
	Base []snapshot.Part `json:"base,omitempty"`
	From uint64          `json:"from,omitempty"`
	// Of is the lane whose workspace this one began as a fork of; only in the first checkpoint.
	Of wire.LaneHash `json:"of,omitempty"`
	// Owner is the tenant of the call that first took the workspace, or of the one that it is a
	// fork of, and By the principal of the call; "" while no worker has taken it, and of earlier
	// versions.
	Owner protocol.Tenant `json:"owner,omitempty"`
	By    string          `json:"by,omitempty"`
	Delta snapshot.Delta  `json:"delta"`
}

// covered is the result of a call, in the message or in bodies.
type covered struct {
	Call   protocol.CallID `json:"call"`
	Result json.RawMessage `json:"result,omitempty"`
	Parts  []snapshot.Part `json:"parts,omitempty"`
}

const (
	typeCheckpoint = "checkpoint"
	version        = 1
)

// message is a checkpoint as it is stored.
type message struct {
	checkpoint

	seq  uint64
	at   time.Time
	size int
	lane protocol.Lane // of the header, unchecked
}

func decode(msg *jetstream.RawStreamMsg) (*message, error) {
	m := &message{seq: msg.Sequence, at: msg.Time, size: len(msg.Data), lane: laneOf(msg.Header)}
	if err := json.Unmarshal(msg.Data, &m.checkpoint); err != nil {
		return nil, fmt.Errorf("checkpoint %d: %w: %w", msg.Sequence, ErrInvalid, err)
	}
	if m.Type != typeCheckpoint || m.Version != version {
		return nil, fmt.Errorf("checkpoint %d: %w: type %q, version %d: must be %q, %d", msg.Sequence, ErrInvalid, m.Type, m.Version, typeCheckpoint, version)
	}
	return m, nil
}

// last reads the last checkpoint of a lane; nil when there is none.
func (s *Store) last(ctx context.Context, lane wire.LaneHash) (*message, error) {
	return s.read(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stream.GetLastMsgForSubject(ctx, wire.WorkspaceSubject(s.fleet, lane))
	})
}

// next reads the first checkpoint of a lane at or behind a sequence; nil when there is none.
func (s *Store) next(ctx context.Context, lane wire.LaneHash, from uint64) (*message, error) {
	return s.read(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(wire.WorkspaceSubject(s.fleet, lane)))
	})
}

func (s *Store) read(ctx context.Context, get func(context.Context) (*jetstream.RawStreamMsg, error)) (*message, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	msg, err := get(ctx)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	return decode(msg)
}

// fold returns the tree of a lane at a checkpoint, and how many checkpoints and bytes of them lie
// between it and its base.
func (s *Store) fold(ctx context.Context, lane wire.LaneHash, to *message) (tree bounded, since int, size int, err error) {
	tree = bounded{Tree: snapshot.Tree{}}
	from, reached := to.From, uint64(0)
	if len(to.Base) > 0 {
		from = to.seq
	}
	err = s.each(ctx, lane, from, func(m *message) (bool, error) {
		if m.seq > to.seq {
			return false, nil
		}
		since, size, reached = since+1, size+m.size, m.seq
		if len(m.Base) > 0 {
			since, size = 0, 0
		}
		return m.seq < to.seq, s.step(ctx, &tree, m)
	})
	if err == nil && reached != to.seq {
		err = fmt.Errorf("checkpoint %d of lane %s: %w: it is not there any more", to.seq, lane, ErrInvalid)
	}
	if err == nil {
		if err = tree.Validate(snapshot.Limits{}); err != nil {
			err = fmt.Errorf("lane %s: %w: %w", lane, ErrInvalid, err)
		}
	}
	return tree, since, size, err
}

// step applies a checkpoint to a tree.
func (s *Store) step(ctx context.Context, tree *bounded, m *message) (err error) {
	if len(m.Base) > 0 {
		tree.Tree, err = snapshot.LoadTree(ctx, s, m.Base)
		tree.used = tree.Usage()
	} else if err = tree.admits(&m.Delta); err == nil {
		tree.Apply(&m.Delta, inlineOf(m.seq))
	}
	if _, is := errors.AsType[*snapshot.Error](err); is {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", m.seq, err)
	}
	return nil
}

// bounded is a tree within the default limits.
type bounded struct {
	snapshot.Tree

	used snapshot.Usage // at least what the tree takes
}

// admits returns an error that wraps [snapshot.ErrLimit] when a delta would make the tree too
// large.
func (b *bounded) admits(d *snapshot.Delta) error {
	b.used = b.used.Plus(d.Set.Usage())
	if b.used.Within(snapshot.Limits{}) == nil {
		return nil
	}
	b.used = b.With(d).Usage() // without what it replaces and removes
	return b.used.Within(snapshot.Limits{})
}

// each goes through the checkpoints of a lane at or behind a sequence until do returns false.
func (s *Store) each(ctx context.Context, lane wire.LaneHash, from uint64, do func(*message) (bool, error)) error {
	for {
		m, err := s.next(ctx, lane, max(from, 1))
		if err != nil || m == nil {
			return err
		}
		goesOn, err := do(m)
		if err != nil || !goesOn {
			return err
		}
		from = m.seq + 1
	}
}

// maxResult bounds a result that is covered.
const maxResult = 64 << 20

// inline begins the names of bodies that checkpoints carry: their sequence follows.
const inline = "@"

func isInline(body string) bool { return strings.HasPrefix(body, inline) }

func inlineOf(seq uint64) string { return inline + strconv.FormatUint(seq, 10) }

// Get implements [snapshot.Bodies]. The error wraps [ErrMissing] when there is no such body, and
// [ErrAway] when the store does not answer.
func (s *Store) Get(ctx context.Context, name string) (body []byte, err error) {
	number, is := strings.CutPrefix(name, inline)
	seq, wrong := strconv.ParseUint(number, 10, 64)
	if is && wrong != nil {
		return nil, fmt.Errorf("body %q: %w", name, ErrInvalid)
	}
	err = s.persist(ctx, func(ctx context.Context) error {
		if is {
			body, err = s.carried(ctx, seq)
		} else {
			body, err = s.bodies.get(ctx, name)
		}
		return err
	})
	return body, err
}

// carried is the body that a checkpoint carries.
func (s *Store) carried(ctx context.Context, seq uint64) ([]byte, error) {
	m, err := s.read(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return s.stream.GetMsg(ctx, seq) })
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("checkpoint %d: %w", seq, ErrMissing)
	}
	return m.Delta.Inline, nil
}

// Put implements [snapshot.Bodies]. What was stored long ago is stored again, for it may be garbage
// that is about to be removed. The error wraps [ErrFull] when there is no room, and [ErrAway] when
// the store does not answer.
func (s *Store) Put(ctx context.Context, name string, body []byte) error {
	begun := time.Now()
	err := s.persist(ctx, func(ctx context.Context) error { return s.bodies.put(ctx, name, body) })
	switch {
	case isFull(err):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case err == nil:
		s.note(name, begun)
	}
	return err
}

// persist does something with a body until it is done, will never be, or has been tried for long
// enough. An answer that is lost is not waited for: each try has twice the time of the one before.
func (s *Store) persist(ctx context.Context, do func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, s.waits)
	defer cancel()
	for patience := firstTry; ; patience *= 2 {
		try, end := context.WithTimeout(within, patience)
		err := do(try)
		end()
		if err == nil || ctx.Err() != nil || lasts(err) {
			return err
		}
		if !pause.For(within, pause.Retry) {
			return fmt.Errorf("%w: %w", ErrAway, err)
		}
	}
}

// append stores the message of a checkpoint behind the last one that its writer has seen, and
// returns its sequence. It continues until that is known, or ctx ends: if the answer was lost, it
// looks for the token. It keeps the new bodies that the checkpoint names.
func (s *Store) append(ctx context.Context, lane wire.LaneHash, expected uint64, token string, msg *nats.Msg, bodies []string) (seq uint64, err error) {
	err = natsio.UntilKnown(ctx, func(context.Context) error {
		if err := s.Keep(ctx, bodies); err != nil { // which takes as long as it takes
			return natsio.NotSent(fmt.Errorf("keep the contents of a checkpoint: %w", err))
		}
		seq, err = s.publish(ctx, msg, expected)
		return err
	}, func(ctx context.Context) (bool, error) {
		last, err := s.last(ctx, lane)
		if err != nil || last == nil || last.Token != token {
			return false, err
		}
		seq = last.seq
		return true, nil
	})
	switch {
	case err == nil:
		return seq, nil
	case natsio.OutcomeOf(err) == natsio.Conflict:
		return 0, ErrLost
	case natsio.NoRoom(err):
		return 0, fmt.Errorf("%w: %w", ErrFull, err)
	default:
		return 0, fmt.Errorf("store checkpoint of %d bytes: %w", msg.Size(), errors.Join(err, context.Cause(ctx)))
	}
}

func (s *Store) publish(ctx context.Context, msg *nats.Msg, expected uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	ack, err := s.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(expected))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// Owner returns the owner of the workspace of a lane. The error wraps [ErrNone] for a lane without
// a workspace.
func (s *Store) Owner(ctx context.Context, lane wire.LaneHash) (judge.Owner, error) {
	last, err := s.last(ctx, lane)
	switch {
	case err != nil:
		return judge.Owner{}, err
	case last == nil:
		return judge.Owner{}, ErrNone
	}
	return last.owner(lane), nil
}

// owner is the owner of the workspace of a lane, of an upload or of a template: of an earlier
// version it is the default tenant, but that of a template is the fleet.
func (m *message) owner(lane wire.LaneHash) judge.Owner {
	switch {
	case m.Owner != "":
		return judge.Owner{Tenant: m.Owner, By: m.By}
	case strings.HasPrefix(string(lane), templates):
		return judge.TheFleet()
	default:
		return judge.Owner{Tenant: judge.DefaultTenant}
	}
}

// Has reports whether a lane has a workspace.
func (s *Store) Has(ctx context.Context, lane wire.LaneHash) (bool, error) {
	last, err := s.last(ctx, lane)
	return last != nil, err
}

// LastDisk is where a lane's workspace was written or taken last; "" when it never was.
func (s *Store) LastDisk(ctx context.Context, lane wire.LaneHash) (string, error) {
	last, err := s.last(ctx, lane)
	if err != nil || last == nil {
		return "", err
	}
	return last.Disk, nil
}

// Remove removes the workspace of a lane under the epoch of its claim; 0 stands for no claim. The
// error wraps [ErrLost] if the workspace was taken under a later claim, or is taken meanwhile; then
// it stays. The workspace is made empty first, on the condition that no other worker has written
// since, and then its checkpoints are removed. A Remove that is cut short leaves an empty
// workspace, and the next one completes it. Its bodies become garbage.
func (s *Store) Remove(ctx context.Context, lane wire.LaneHash, epoch uint64) error {
	last, err := s.lastReadable(ctx, lane)
	if err != nil || last == nil {
		return err
	}
	if err := s.fence(ctx, last.Epoch, epoch); err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	w := s.behind(lane, last)
	w.epoch = epoch
	err = w.begin(ctx, &checkpoint{}, &snapshot.Delta{})
	if errors.Is(err, ErrFull) { // then no worker can take it, either, before there is room
		return s.purge(ctx, lane, last.seq+1)
	}
	if err != nil {
		return fmt.Errorf("remove workspace: %w", err)
	}
	return s.purge(ctx, lane, w.last+1)
}

// lastReadable is the last checkpoint of a lane. Of one that cannot be read only the sequence is
// known.
func (s *Store) lastReadable(ctx context.Context, lane wire.LaneHash) (m *message, err error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	msg, err := s.stream.GetLastMsgForSubject(ctx, wire.WorkspaceSubject(s.fleet, lane))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	if m, err = decode(msg); err != nil {
		m = &message{seq: msg.Sequence, lane: laneOf(msg.Header)}
	}
	return m, nil
}

// behind is the workspace that begins again, empty, behind a checkpoint.
func (s *Store) behind(lane wire.LaneHash, last *message) *Workspace {
	w := s.unbegun(lane)
	w.owner, w.epoch, w.last = last.owner(lane), last.Epoch, last.seq
	if wire.HashLane(last.lane) == lane {
		w.name = last.lane
	}
	return w
}

// fence returns an error that wraps [ErrLost] if a workspace was taken under a later claim. An
// epoch that the claims stream has not reached is none of it: the stream was made again, or
// restored from an earlier backup, and no worker holds the lane under that epoch.
func (s *Store) fence(ctx context.Context, taken, epoch uint64) error {
	if taken <= epoch {
		return nil
	}
	claims, err := s.js.Stream(ctx, wire.ClaimsStream(s.fleet))
	if err != nil {
		return fmt.Errorf("compare epochs: %w", err)
	}
	if claims.CachedInfo().State.LastSeq < taken {
		return nil
	}
	return errTooLate
}

// purge removes the checkpoints of a lane before a sequence.
func (s *Store) purge(ctx context.Context, lane wire.LaneHash, before uint64) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(wire.WorkspaceSubject(s.fleet, lane)), jetstream.WithPurgeSequence(before)); err != nil {
		return fmt.Errorf("remove checkpoints: %w", err)
	}
	return nil
}

// journals are the journals whose lanes, or what stands for lanes, begin with a prefix: what
// follows it, sorted.
func (s *Store) journals(ctx context.Context, prefix string) (names []string, err error) {
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(wire.WorkspaceSubject(s.fleet, "*")))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		if name, is := strings.CutPrefix(subject, wire.WorkspaceSubject(s.fleet, wire.LaneHash(prefix))); is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
