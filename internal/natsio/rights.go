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

	"github.com/toolfleet/toolfleet/internal/wire"
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

// readStateRights allow reading the state of streams.
func readStateRights(nc *nats.Conn, streams ...string) Rights {
	r := Rights{Subscribe: []string{strings.TrimSuffix(cmp.Or(nc.Opts.InboxPrefix, nats.InboxPrefix), ".") + "." + probed + ".*"}}
	for _, stream := range streams {
		r.Publish = append(r.Publish, "$JS.API.STREAM.INFO."+stream)
	}
	return r
}

// makeRights allow creating a missing stream.
func makeRights(stream string) Rights {
	rights := Rights{Publish: []string{"$JS.API.STREAM.CREATE." + stream}}
	if strings.HasSuffix(stream, "_CALLS") { // it is made larger first, see make
		rights.Publish = append(rights.Publish, "$JS.API.STREAM.UPDATE."+stream)
	}
	return rights
}

// SendRights allow sending calls to a pool.
func SendRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{wire.ReadySubject(fleet, pool, probed), wire.CallSubject(fleet, pool, probed, probed)}}
}

// CallRights allow sending calls to a pool and following them.
func CallRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls := wire.CallsStream(fleet)
	return Rights{
		Pool: pool,
		Publish: append(SendRights(fleet, pool).Publish,
			"$JS.API.DIRECT.GET."+calls, "$JS.API.STREAM.MSG.GET."+calls,
			"$JS.API.STREAM.MSG.GET."+wire.ResultsStream(fleet), chunkSubject(wire.BlobsBucket(fleet), probed),
		),
		Subscribe: []string{wire.DoneSubject(fleet, probed, "*"), wire.OutputSubject(fleet, probed, "*"), wire.LiveSubject(fleet, probed, "*")},
	}
}

// OwnerRights allow looking up which worker holds a lane of a pool.
func OwnerRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{
		"$JS.API.DIRECT.GET." + wire.ClaimsStream(fleet), "$JS.API.STREAM.MSG.GET." + wire.ClaimsStream(fleet),
	}}
}

// LaneRights allow inspecting the lanes of a pool. LaneChangeRights are needed in addition to
// change them.
func LaneRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls := wire.CallsStream(fleet)
	return Rights{Pool: pool, Publish: []string{
		wire.AskAllSubject(fleet, pool), wire.AskSubject(fleet, pool, probed), "$JS.API.CONSUMER.INFO." + calls + "." + wire.ReadyConsumer(pool),
		"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls,
		"$JS.API.DIRECT.GET." + wire.ClaimsStream(fleet), "$JS.API.STREAM.MSG.GET." + wire.ClaimsStream(fleet),
		"$JS.API.DIRECT.GET." + wire.ResultsStream(fleet), "$JS.API.STREAM.MSG.GET." + wire.ResultsStream(fleet),
	}}
}

// LaneChangeRights are described at [LaneRights].
func LaneChangeRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{
		wire.ReadySubject(fleet, pool, probed), wire.CallSubject(fleet, pool, probed, probed), "$JS.API.STREAM.MSG.DELETE." + wire.CallsStream(fleet),
	}}
}

// SessionRights allow running sessions.
func SessionRights(fleet protocol.Fleet) []Rights {
	return []Rights{
		{Publish: []string{wire.EventSubject(fleet, probed), "$JS.API.STREAM.MSG.GET." + wire.SessionsStream(fleet), chunkSubject(wire.KeptBucket(fleet), probed)}},
		{Pool: protocol.DefaultPool, Publish: []string{chunkSubject(wire.KeptBucket(fleet), probed)}},
	}
}

// WorkspaceRights allow creating workspaces.
func WorkspaceRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{
		wire.WorkspaceSubject(fleet, probed), "$JS.API.STREAM.MSG.GET." + wire.WorkspacesStream(fleet), chunkSubject(wire.BodiesBucket(fleet), probed),
	}}
}

// WorkspaceListRights allow listing the workspaces of a pool's sandboxes.
func WorkspaceListRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	stream := wire.WorkspacesStream(fleet)
	return Rights{Pool: pool, Publish: []string{"$JS.API.STREAM.MSG.GET." + stream, "$JS.API.CONSUMER.CREATE." + stream + "." + probed}}
}

// UploadRights allow uploading a directory: adding contents, without writing a journal.
func UploadRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{"$JS.API.STREAM.MSG.GET." + wire.WorkspacesStream(fleet), chunkSubject(wire.BodiesBucket(fleet), probed)}}
}

// readRights allow reading a bucket, and changeRights changing it, too.
func readRights(bucket string) Rights {
	return Rights{Publish: []string{"$JS.API.DIRECT.GET.KV_" + bucket, "$JS.API.STREAM.MSG.GET.KV_" + bucket, "$JS.API.STREAM.INFO.KV_" + bucket}}
}

func changeRights(bucket string) Rights {
	return Rights{Publish: append(readRights(bucket).Publish, "$KV."+bucket+"."+probed)}
}

// ScheduleRights allow changing schedules, and ScheduleListRights listing them.
func ScheduleRights(fleet protocol.Fleet) Rights { return changeRights(wire.SchedulesBucket(fleet)) }

// ScheduleListRights are described at [ScheduleRights].
func ScheduleListRights(fleet protocol.Fleet) []Rights {
	return []Rights{readRights(wire.SchedulesBucket(fleet)), {Publish: []string{"$JS.API.STREAM.MSG.GET." + wire.ResultsStream(fleet)}}}
}

// LimitRights allow changing limits, and LimitListRights listing them.
func LimitRights(fleet protocol.Fleet) Rights { return changeRights(wire.LimitsBucket(fleet)) }

// LimitListRights are described at [LimitRights].
func LimitListRights(fleet protocol.Fleet) Rights { return readRights(wire.LimitsBucket(fleet)) }

// LimitUseRights allow counting what the calls of a pool use of limits.
func LimitUseRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	r := Rights{Pool: pool, Publish: []string{"$JS.API.DIRECT.GET." + wire.CallsStream(fleet)}}
	for _, bucket := range []string{wire.BlobsBucket(fleet), wire.KeptBucket(fleet), wire.BodiesBucket(fleet)} {
		r.Publish = append(r.Publish, "$JS.API.DIRECT.GET."+ObjectStream(bucket))
	}
	return r
}

// TokenRights allow changing the tokens of clients over HTTP, and TokenListRights listing them and
// letting clients in.
func TokenRights(fleet protocol.Fleet) Rights {
	return Rights{Publish: append(TokenListRights(fleet).Publish, wire.TokensSubject(fleet))}
}

// TokenListRights are described at [TokenRights].
func TokenListRights(fleet protocol.Fleet) Rights {
	bucket := "KV_" + wire.PlacesBucket(fleet)
	return Rights{Publish: []string{"$JS.API.STREAM.INFO." + bucket, "$JS.API.STREAM.MSG.GET." + bucket, "$JS.API.DIRECT.GET." + bucket + "." + wire.TokensSubject(fleet)}}
}

// BrowserRights allow signing browsers in, and out.
func BrowserRights(fleet protocol.Fleet) Rights {
	bucket := "KV_" + wire.PlacesBucket(fleet)
	return Rights{Publish: []string{"$JS.API.STREAM.INFO." + bucket, "$JS.API.DIRECT.GET." + bucket + "." + wire.BrowsersSubject(fleet), wire.BrowsersSubject(fleet)}}
}

// WebhookRights allow changing and listing webhooks, which have secrets.
func WebhookRights(fleet protocol.Fleet) Rights { return changeRights(wire.WebhooksBucket(fleet)) }

// TemplateListRights allow listing templates; [WorkspaceRights] are for changing them.
func TemplateListRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{
		"$JS.API.STREAM.MSG.GET." + wire.WorkspacesStream(fleet), "$JS.API.STREAM.MSG.GET." + ObjectStream(wire.BodiesBucket(fleet)),
		"$JS.API.DIRECT.GET.KV_" + wire.PlacesBucket(fleet) + "." + placeSubject(fleet),
	}}
}

// PoolsRights allow listing the pools of a server.
func PoolsRights(fleet protocol.Fleet) Rights {
	return Rights{Publish: []string{"$JS.API.CONSUMER.NAMES." + wire.CallsStream(fleet)}}
}

// WorkersRights allow listing the workers of a pool.
func WorkersRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	return Rights{Pool: pool, Publish: []string{wire.WhoSubject(fleet, pool)}}
}

// AnswerRights allow answering the questions of calls of a pool, and of sessions.
func AnswerRights(fleet protocol.Fleet, pool protocol.Pool) []Rights {
	return []Rights{
		{Publish: []string{wire.AnswerSubject(fleet, protocol.SessionPool, probed, probed)}},
		{Pool: pool, Publish: []string{wire.AnswerSubject(fleet, pool, probed, probed)}},
	}
}

// ApprovalRights are [AnswerRights], and allow approving calls.
func ApprovalRights(fleet protocol.Fleet, pool protocol.Pool) []Rights {
	return append(AnswerRights(fleet, pool), Rights{Publish: []string{wire.ApprovalSubject(fleet, probed, probed)}})
}

// JournalRights allow reading sessions.
func JournalRights(fleet protocol.Fleet) []Rights {
	reads := func(stream string) string { return "$JS.API.STREAM.MSG.GET." + stream }
	return []Rights{
		{Publish: []string{reads(wire.SessionsStream(fleet))}},
		{Pool: protocol.DefaultPool, Publish: []string{reads(ObjectStream(wire.KeptBucket(fleet))), reads(ObjectStream(wire.BlobsBucket(fleet)))}},
	}
}

// RemoveRights allow removing sessions.
func RemoveRights(fleet protocol.Fleet) []Rights {
	return []Rights{
		{Publish: []string{purge + wire.SessionsStream(fleet), purge + ObjectStream(wire.KeptBucket(fleet))}},
		{Pool: protocol.DefaultPool, Publish: []string{
			purge + wire.ResultsStream(fleet), purge + ObjectStream(wire.KeptBucket(fleet)), purge + ObjectStream(wire.BlobsBucket(fleet)),
		}},
	}
}

// purge begins the subject of a request that removes messages of a stream.
const purge = "$JS.API.STREAM.PURGE."

// placeSubject is where a fleet's record says where the contents of workspaces are.
func placeSubject(fleet protocol.Fleet) wire.Subject {
	return "$KV." + wire.PlacesBucket(fleet) + "." + wire.BodiesKey
}

// PlaceRights allow deciding where the contents of workspaces are. Workers have none: the one who
// decides is sent the contents, with the credentials of the store.
func PlaceRights(fleet protocol.Fleet) Rights {
	return Rights{Pool: protocol.DefaultPool, Publish: []string{placeSubject(fleet)}}
}

// PoolRights allow taking the calls of a pool.
func PoolRights(fleet protocol.Fleet, pool protocol.Pool) Rights {
	calls, consumer, care := wire.CallsStream(fleet), wire.ReadyConsumer(pool), wire.CareConsumer(pool)
	claims := wire.ClaimsStream(fleet)
	return Rights{
		Publish: []string{
			wire.ReadySubject(fleet, pool, probed), wire.CallSubject(fleet, pool, probed, probed),
			wire.TicketSubject(fleet, pool, probed, wire.Flow{Tenant: probed, Priority: probed}),
			wire.ResultSubject(fleet, probed, probed), wire.OutputSubject(fleet, probed, probed), wire.QuestionSubject(fleet, pool, probed, probed),
			"$JS.ACK." + calls + "." + consumer + "." + probed,
			"$JS.API.CONSUMER.INFO." + calls + "." + consumer,
			"$JS.API.CONSUMER.MSG.NEXT." + calls + "." + consumer, // without a reply subject it takes nothing
			"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls, "$JS.API.STREAM.MSG.DELETE." + calls,
			"$JS.API.DIRECT.GET." + wire.ResultsStream(fleet), "$JS.API.STREAM.MSG.GET." + wire.ResultsStream(fleet),
			"$JS.ACK." + calls + "." + care + "." + probed,
			"$JS.API.CONSUMER.INFO." + calls + "." + care,
			"$JS.API.CONSUMER.MSG.NEXT." + calls + "." + care,
			wire.ClaimSubject(fleet, pool, probed), wire.HeartbeatSubject(fleet, pool, probed), wire.AskSubject(fleet, pool, probed),
			"$JS.API.DIRECT.GET." + claims, "$JS.API.STREAM.MSG.GET." + claims, "$JS.API.STREAM.MSG.DELETE." + claims,
			"$JS.API.DIRECT.GET.KV_" + wire.LimitsBucket(fleet) + "." + wire.LimitsSubject(fleet),
			"$JS.API.DIRECT.GET.KV_" + wire.PlacesBucket(fleet) + "." + placeSubject(fleet),
			chunkSubject(wire.BlobsBucket(fleet), probed), chunkSubject(wire.KeptBucket(fleet), probed),
			wire.WorkspaceSubject(fleet, probed), "$JS.API.STREAM.MSG.GET." + wire.WorkspacesStream(fleet),
			chunkSubject(wire.BodiesBucket(fleet), probed),
			purge + wire.WorkspacesStream(fleet), purge + ObjectStream(wire.BlobsBucket(fleet)),
			purge + ObjectStream(wire.KeptBucket(fleet)), purge + ObjectStream(wire.BodiesBucket(fleet)),
			"$JS.API.DIRECT.GET." + ObjectStream(wire.BlobsBucket(fleet)),
			"$JS.API.DIRECT.GET." + ObjectStream(wire.KeptBucket(fleet)),
			"$JS.API.DIRECT.GET." + ObjectStream(wire.BodiesBucket(fleet)),
		},
		Subscribe: []string{
			wire.WhoSubject(fleet, pool), wire.AskAllSubject(fleet, pool), wire.AskSubject(fleet, pool, "*"), wire.StoredFilter(fleet, pool, probed),
			wire.BeatFilter(fleet, pool), wire.AnswerSubject(fleet, pool, probed, probed), wire.LimitsSubject(fleet),
			wire.TicketSubject(fleet, pool, "*", wire.AnyFlow()),
		},
	}
}

// IsRequest reports whether a client sent a message as a request, as an answer of a person must be
// sent. A server publishes what is stored on whatever reply subject a client names, but with no
// reply subject of its own, or with the subject of an acknowledgement.
func IsRequest(msg *nats.Msg) bool {
	return msg.Reply != "" && !strings.HasPrefix(msg.Reply, "$JS.ACK.")
}

// CheckRights finds missing rights that would otherwise show as requests without an answer: the
// error wraps [ErrRights] and names every subject of the rights that the server refuses. What is
// published to find out has no effect. If the server refuses a right, it answers once for each
// right, and may take 5 seconds for each answer.
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
	return fmt.Errorf("%w: it may not %s (docs/operations/start.md, NATS servers, lists the rights that it needs)", ErrRights, strings.Join(missing, ", "))
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
	if err := nc.FlushWithContext(ctx); err != nil { // refusals come before the answer
		return false, fmt.Errorf("try the rights of the NATS user: %w", err)
	}
	last := nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return false, nil
	}
	// The account may map subjects to others that end with them, as deploy/nats does.
	return slices.ContainsFunc(tries, func(t try) bool { return strings.Contains(last.Error(), t.subject+`"`) }), nil
}

// publishNothing publishes a message that no stream takes and no process answers. A request to
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
