package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestSubjects_ArePinned: subjects are the wire between versions.
func TestSubjects_ArePinned(t *testing.T) {
	t.Parallel()
	const f protocol.Fleet = "my-fleet"
	for want, got := range map[string]string{
		"my-fleet.call.gpu.lane.c-1":            wire.CallSubject(f, "gpu", "lane", "c-1"),
		"my-fleet.call.gpu.lane.c-1.cancel":     wire.CancelSubject(f, "gpu", "lane", "c-1"),
		"my-fleet.call.gpu.lane.c-1.start2":     wire.StartSubject(f, "gpu", "lane", "c-1", 2),
		"my-fleet.call.gpu.lane.floor.17":       wire.FloorSubject(f, "gpu", "lane", 17),
		"my-fleet.claim.gpu.lane":               wire.ClaimSubject(f, "gpu", "lane"),
		"my-fleet.claim.gpu.>":                  wire.ClaimSubject(f, "gpu", ">"),
		"my-fleet.heartbeat.gpu.life":           wire.HeartbeatSubject(f, "gpu", "life"),
		"my-fleet.heartbeat.gpu.>":              wire.HeartbeatSubject(f, "gpu", ">"),
		"my-fleet.beat.gpu.*":                   wire.BeatFilter(f, "gpu"),
		"MY-FLEET_CLAIMS":                       wire.ClaimsStream(f),
		"my-fleet.claim.> my-fleet.heartbeat.>": strings.Join(wire.ClaimsSubjects(f), " "),
		"my-fleet.call.gpu.lane.lane.pause":     wire.PauseSubject(f, "gpu", "lane"),
		"my-fleet.call.gpu.lane.>":              wire.MailboxFilter(f, "gpu", "lane"),
		"my-fleet.call.gpu.>":                   wire.MailboxesFilter(f, "gpu"),
		"my-fleet.who.gpu":                      wire.WhoSubject(f, "gpu"),
		"my-fleet.ask.gpu":                      wire.AskAllSubject(f, "gpu"),
		"my-fleet.ask.gpu.lane":                 wire.AskSubject(f, "gpu", "lane"),
		"my-fleet.ask.gpu.*":                    wire.AskSubject(f, "gpu", "*"),
		"my-fleet.ready.gpu.lane":               wire.ReadySubject(f, "gpu", "lane"),
		"my-fleet.ready.gpu.*":                  wire.ReadySubject(f, "gpu", "*"),
		"my-fleet.result.s.c-1":                 wire.ResultSubject(f, "s", "c-1"),
		"my-fleet.result.s.c-1.none.17":         wire.NoResultSubject(f, "s", "c-1", 17),
		"my-fleet.result.s.>":                   wire.ResultSubject(f, "s", ">"),
		"my-fleet.done.s.c-1":                   wire.DoneSubject(f, "s", "c-1"),
		"my-fleet.done.s.*":                     wire.DoneSubject(f, "s", "*"),
		"my-fleet.event.s":                      wire.EventSubject(f, "s"),
		"my-fleet.output.s.c-1":                 wire.OutputSubject(f, "s", "c-1"),
		"my-fleet.question.gpu.s.c-1":           wire.QuestionSubject(f, "gpu", "s", "c-1"),
		"my-fleet.answer.gpu.s.c-1":             wire.AnswerSubject(f, "gpu", "s", "c-1"),
		"my-fleet.output.s.*":                   wire.OutputSubject(f, "s", "*"),
		"my-fleet.live.s.c-1":                   wire.LiveSubject(f, "s", "c-1"),
		"my-fleet.live.s.*":                     wire.LiveSubject(f, "s", "*"),
		"MY-FLEET_CALLS":                        wire.CallsStream(f),
		"MY-FLEET_RESULTS":                      wire.ResultsStream(f),
		"MY-FLEET_SESSIONS":                     wire.SessionsStream(f),
		"MY-FLEET_WORKSPACES":                   wire.WorkspacesStream(f),
		"MY-FLEET_BODIES":                       wire.BodiesBucket(f),
		"my-fleet.workspace.LANE":               wire.WorkspaceSubject(f, "LANE"),
		"MY-FLEET_BLOBS":                        wire.BlobsBucket(f),
		"MY-FLEET_KEPT":                         wire.KeptBucket(f),
		"MY-FLEET_PLACES":                       wire.PlacesBucket(f),
		"MY-FLEET_SCHEDULES":                    wire.SchedulesBucket(f),
		"$KV.MY-FLEET_PLACES.tokens":            wire.TokensSubject(f),
		"MY-FLEET_LIMITS":                       wire.LimitsBucket(f),
		"MY-FLEET_WEBHOOKS":                     wire.WebhooksBucket(f),
		"$KV.MY-FLEET_LIMITS.rules":             wire.LimitsSubject(f),
		"ready_gpu":                             wire.ReadyConsumer("gpu"),
		"care_gpu":                              wire.CareConsumer("gpu"),
		"my-fleet.call.> my-fleet.ready.>":      strings.Join(wire.CallsSubjects(f), " "),
		"my-fleet.result.>":                     strings.Join(wire.ResultsSubjects(f), " "),
		"my-fleet.event.*":                      strings.Join(wire.SessionsSubjects(f), " "),
	} {
		require.Equal(t, want, got)
	}
	source, destination := wire.DoneMapping(f)
	require.Equal(t, "my-fleet.result.>", source)
	require.Equal(t, "my-fleet.done.>", destination)
}

func TestParseMailboxSubject(t *testing.T) {
	t.Parallel()
	const f = protocol.DefaultFleet
	// Ids that read like marks are legal and must not be mistaken for them.
	for _, id := range []protocol.CallID{"c-1", "cancel", "start", "start1", "floor", "12-3", "lane", "pause"} {
		t.Run("of call "+string(id), func(t *testing.T) {
			t.Parallel()
			requireMailboxInverse(t, f, "gpu", "lane", id, 4, 18)
		})
	}
}

func TestParseMailboxSubject_PauseIsOfTheLane(t *testing.T) {
	t.Parallel()
	const f = protocol.DefaultFleet
	require.Equal(t, wire.MailboxEntry{Kind: wire.EntryPause}, wire.ParseMailboxSubject(f, wire.PauseSubject(f, "gpu", "lane")))
	require.Equal(t, wire.MailboxEntry{}, wire.ParseMailboxSubject(f, "tf.call.p.l.c.pause"))
}

func TestLaneOfSubject(t *testing.T) {
	t.Parallel()
	const f = protocol.DefaultFleet
	for name, test := range map[string]struct {
		subject wire.Subject
		lane    wire.LaneHash
	}{
		"a ready message": {wire.ReadySubject(f, "gpu", "h"), "h"},
		"a call":          {wire.CallSubject(f, "gpu", "h", "c"), "h"},
		"a mark":          {wire.StartSubject(f, "gpu", "h", "c", 2), "h"},
		"a claim":         {wire.ClaimSubject(f, "gpu", "h"), "h"},
		"another fleet":   {wire.ReadySubject(protocol.Fleet("other"), "gpu", "h"), ""},
		"a result":        {wire.ResultSubject(f, "s", "c"), ""},
		"nothing":         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.lane, wire.LaneOfSubject(f, test.subject))
		})
	}
}

func TestParseMailboxSubject_UnknownIsNotGuessed(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]string{
		"empty":                     "",
		"another fleet":             "tg.call.p.l.c",
		"a ready message":           "tf.ready.p.l",
		"the lane only":             "tf.call.p.l",
		"a later mark":              "tf.call.p.l.c.paused",
		"a longer mark":             "tf.call.p.l.c.cancel.now",
		"start without n":           "tf.call.p.l.c.start",
		"start 0":                   "tf.call.p.l.c.start0",
		"start below 0":             "tf.call.p.l.c.start-1",
		"start of a word":           "tf.call.p.l.c.started",
		"unknown mark":              "tf.call.p.l.unknown.12",
		"unknown mark of a word":    "tf.call.p.l.unknown.x-1",
		"unknown mark, n of a word": "tf.call.p.l.unknown.12-x",
		"claim of a word":           "tf.call.p.l.claim.x",
		"numbers of a call":         "tf.call.p.l.c.12-3",
		"a sequence too long":       "tf.call.p.l.unknown.99999999999999999999-1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, wire.MailboxEntry{}, wire.ParseMailboxSubject(protocol.DefaultFleet, subject))
		})
	}
}
