package natsio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrRights is wrapped by errors about what a NATS user may not do.
var ErrRights = errors.New("the NATS user has too few rights")

// Rights are subjects that a process publishes on and subscribes to, one for each permission that
// it needs.
type Rights struct {
	Publish, Subscribe []string
	// Pool is the pool where they are needed, which may have an account of its own; "" is where
	// journals and turns are.
	Pool protocol.Pool
}

// probed stands in subjects for the ids of sessions and calls.
const probed = "rights"

// lookRights are those of whoever looks at streams.
func lookRights(nc *nats.Conn, streams ...string) Rights {
	r := Rights{Subscribe: []string{strings.TrimSuffix(cmp.Or(nc.Opts.InboxPrefix, nats.InboxPrefix), ".") + "." + probed + ".*"}}
	for _, stream := range streams {
		r.Publish = append(r.Publish, "$JS.API.STREAM.INFO."+stream)
	}
	return r
}

// makeRights are those of whoever makes a stream that is missing.
func makeRights(stream string) Rights {
	return Rights{Publish: []string{"$JS.API.STREAM.CREATE." + stream}}
}

// CallRights are those of whoever has calls of a pool run, and follows them.
func CallRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls := fleet.CallsStream()
	return Rights{
		Pool: pool,
		Publish: []string{
			fleet.ReadySubject(pool, probed), fleet.CallSubject(pool, probed, probed),
			"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls,
			"$JS.API.STREAM.MSG.GET." + fleet.ResultsStream(), chunkSubject(fleet.BlobsBucket(), probed),
		},
		Subscribe: []string{fleet.DoneFilter(probed), fleet.OutputFilter(probed), fleet.LiveFilter(probed)},
	}
}

// OwnerRights are those of whoever looks which worker has a lane of a pool.
func OwnerRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{
		"$JS.API.DIRECT.GET." + fleet.ClaimsStream(), "$JS.API.STREAM.MSG.GET." + fleet.ClaimsStream(),
	}}
}

// LaneRights are those of whoever looks at the lanes of a pool, and LaneChangeRights what it takes
// beside them to interfere.
func LaneRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls := fleet.CallsStream()
	return Rights{Pool: pool, Publish: []string{
		fleet.AskAllSubject(pool), fleet.AskSubject(pool, probed), "$JS.API.CONSUMER.INFO." + calls + "." + fleet.ReadyConsumer(pool),
		"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls,
		"$JS.API.DIRECT.GET." + fleet.ClaimsStream(), "$JS.API.STREAM.MSG.GET." + fleet.ClaimsStream(),
		"$JS.API.STREAM.MSG.GET." + fleet.ResultsStream(),
	}}
}

// LaneChangeRights is told of at [LaneRights].
func LaneChangeRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{
		fleet.ReadySubject(pool, probed), fleet.CallSubject(pool, probed, probed), "$JS.API.STREAM.MSG.DELETE." + fleet.CallsStream(),
	}}
}

// SessionRights are those of whoever runs sessions.
func SessionRights(fleet protocol.Fleet) []Rights {
	return []Rights{
		{Publish: []string{fleet.EventSubject(probed), "$JS.API.STREAM.MSG.GET." + fleet.SessionsStream(), chunkSubject(fleet.KeptBucket(), probed)}},
		{Pool: protocol.DefaultPool, Publish: []string{chunkSubject(fleet.KeptBucket(), probed)}},
	}
}

// WorkspaceRights are those of whoever begins workspaces.
func WorkspaceRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{
		fleet.WorkspaceSubject(probed), "$JS.API.STREAM.MSG.GET." + fleet.WorkspacesStream(), chunkSubject(fleet.BodiesBucket(), probed),
	}}
}

// UploadRights are those of whoever sends a directory: they add contents, and write no journal.
func UploadRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{"$JS.API.STREAM.MSG.GET." + fleet.WorkspacesStream(), chunkSubject(fleet.BodiesBucket(), probed)}}
}

// WorkersRights are those of whoever asks which workers a pool has.
func WorkersRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{fleet.WhoSubject(pool)}}
}

// ApprovalRights are those of whoever answers whether calls may be made, and what calls of a pool
// ask.
func ApprovalRights(fleet protocol.Fleet, pool protocol.Pool) []Rights {
	return []Rights{
		{Publish: []string{fleet.ApprovalSubject(probed, probed)}},
		{Pool: pool, Publish: []string{fleet.AnswerSubject(pool, probed, probed)}},
	}
}

// JournalRights are those of whoever looks at sessions.
func JournalRights(fleet protocol.Fleet) []Rights {
	looks := func(stream string) string { return "$JS.API.CONSUMER.CREATE." + stream + "." + probed }
	return []Rights{
		{Publish: []string{"$JS.API.STREAM.MSG.GET." + fleet.SessionsStream(), looks(fleet.SessionsStream())}},
		{Pool: protocol.DefaultPool, Publish: []string{looks(ObjectStream(fleet.KeptBucket())), looks(ObjectStream(fleet.BlobsBucket()))}},
	}
}

// RemoveRights are those of whoever removes sessions.
func RemoveRights(fleet protocol.Fleet) []Rights {
	return []Rights{
		{Publish: []string{purge + fleet.SessionsStream()}},
		{Pool: protocol.DefaultPool, Publish: []string{
			purge + fleet.ResultsStream(), purge + ObjectStream(fleet.KeptBucket()), purge + ObjectStream(fleet.BlobsBucket()),
		}},
	}
}

// purge begins the subject of a request that removes messages of a stream.
const purge = "$JS.API.STREAM.PURGE."

// poolRights are those of whoever takes the calls of a pool.
func poolRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls, consumer, care := fleet.CallsStream(), fleet.ReadyConsumer(pool), fleet.CareConsumer(pool)
	claims := fleet.ClaimsStream()
	return Rights{
		Publish: []string{
			fleet.ReadySubject(pool, probed), fleet.CallSubject(pool, probed, probed),
			fleet.ResultSubject(probed, probed), fleet.OutputSubject(probed, probed), fleet.QuestionSubject(pool, probed, probed),
			"$JS.ACK." + calls + "." + consumer + "." + probed,
			"$JS.API.CONSUMER.INFO." + calls + "." + consumer,
			"$JS.API.CONSUMER.MSG.NEXT." + calls + "." + consumer, // without a reply subject it takes nothing
			"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls, "$JS.API.STREAM.MSG.DELETE." + calls,
			"$JS.API.DIRECT.GET." + fleet.ResultsStream(), "$JS.API.STREAM.MSG.GET." + fleet.ResultsStream(),
			"$JS.ACK." + calls + "." + care + "." + probed,
			"$JS.API.CONSUMER.INFO." + calls + "." + care,
			"$JS.API.CONSUMER.MSG.NEXT." + calls + "." + care,
			fleet.ClaimSubject(pool, probed), fleet.HeartbeatSubject(pool, probed), fleet.AskSubject(pool, probed),
			"$JS.API.DIRECT.GET." + claims, "$JS.API.STREAM.MSG.GET." + claims, "$JS.API.STREAM.MSG.DELETE." + claims,
			"$KV." + fleet.PlacesBucket() + "." + probed, chunkSubject(fleet.BlobsBucket(), probed), chunkSubject(fleet.KeptBucket(), probed),
			fleet.WorkspaceSubject(probed), "$JS.API.STREAM.MSG.GET." + fleet.WorkspacesStream(),
			chunkSubject(fleet.BodiesBucket(), probed),
			purge + fleet.WorkspacesStream(), purge + ObjectStream(fleet.BlobsBucket()), purge + ObjectStream(fleet.KeptBucket()), purge + ObjectStream(fleet.BodiesBucket()),
			"$JS.API.DIRECT.GET." + ObjectStream(fleet.BlobsBucket()), "$JS.API.DIRECT.GET." + ObjectStream(fleet.KeptBucket()), "$JS.API.DIRECT.GET." + ObjectStream(fleet.BodiesBucket()),
		},
		Subscribe: []string{
			fleet.WhoSubject(pool), fleet.AskAllSubject(pool), fleet.AskFilter(pool), fleet.StoredFilter(pool, probed),
			fleet.BeatFilter(pool), fleet.AnswerSubject(pool, probed, probed),
		},
	}
}

// CheckRights tells at once what would otherwise show as requests without an answer: the error
// wraps [ErrRights] and names every subject of the rights that the server refuses. What is
// published to find out has no effect. The server may take 5 seconds for each answer, of which
// there are as many as rights when it refuses one.
func CheckRights(ctx context.Context, nc *nats.Conn, rights ...Rights) error {
	var all []try
	for _, r := range rights {
		for _, subject := range r.Publish {
			all = append(all, try{"publish on", subject, publishNothing})
		}
		for _, subject := range r.Subscribe {
			all = append(all, try{"subscribe to", subject, subscribeNothing})
		}
	}
	refused, err := refuses(ctx, nc, all...)
	if err != nil || !refused {
		return err
	}
	var missing []string // the connection remembers the last refusal alone, so one by one
	for _, t := range all {
		refused, err := refuses(ctx, nc, t)
		if err != nil {
			return err
		}
		if text := t.may + " " + t.subject; refused && !slices.Contains(missing, text) {
			missing = append(missing, text)
		}
	}
	if len(missing) == 0 { // they were given meanwhile
		return nil
	}
	return fmt.Errorf("%w: it may not %s (docs/operations/start.md, NATS servers, has all that are needed)", ErrRights, strings.Join(missing, ", "))
}

// try finds out whether a user may do something with a subject.
type try struct {
	may, subject string
	do           func(nc *nats.Conn, subject string) error
}

// refuses does all of it, and reports whether the server has refused something.
func refuses(ctx context.Context, nc *nats.Conn, tries ...try) (bool, error) {
	for _, t := range tries {
		if err := t.do(nc, t.subject); err != nil {
			return false, fmt.Errorf("try to %s %s: %w", t.may, t.subject, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil { // what is refused is told before its answer
		return false, fmt.Errorf("try the rights of the NATS user: %w", err)
	}
	last := nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return false, nil
	}
	// The account may map subjects to others that end with them, as deploy/nats does.
	return slices.ContainsFunc(tries, func(t try) bool { return strings.Contains(last.Error(), t.subject+`"`) }), nil
}

// publishNothing publishes a message that no stream takes, and that nobody answers. A request to
// purge is one for a subject that no stream has.
func publishNothing(nc *nats.Conn, subject string) error {
	msg := &nats.Msg{Subject: subject, Header: nats.Header{jetstream.ExpectedStreamHeader: []string{probed}}}
	if strings.HasPrefix(subject, purge) {
		msg.Data = []byte(`{"filter":"` + probed + `"}`)
	}
	return nc.PublishMsg(msg)
}

func subscribeNothing(nc *nats.Conn, subject string) error {
	subscription, err := nc.SubscribeSync(subject)
	if err != nil {
		return err
	}
	return subscription.Unsubscribe()
}
