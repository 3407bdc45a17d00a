package protocol_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestSubjects_ArePinned: subjects are the wire between versions.
func TestSubjects_ArePinned(t *testing.T) {
	t.Parallel()
	const f protocol.Fleet = "my-fleet"
	for want, got := range map[string]string{
		"my-fleet.call.gpu.lane.c-1":            f.CallSubject("gpu", "lane", "c-1"),
		"my-fleet.call.gpu.lane.c-1.cancel":     f.CancelSubject("gpu", "lane", "c-1"),
		"my-fleet.call.gpu.lane.c-1.start2":     f.StartSubject("gpu", "lane", "c-1", 2),
		"my-fleet.call.gpu.lane.floor.17":       f.FloorSubject("gpu", "lane", 17),
		"my-fleet.claim.gpu.lane":               f.ClaimSubject("gpu", "lane"),
		"my-fleet.claim.gpu.>":                  f.ClaimsFilter("gpu"),
		"my-fleet.heartbeat.gpu.life":           f.HeartbeatSubject("gpu", "life"),
		"my-fleet.heartbeat.gpu.>":              f.HeartbeatsFilter("gpu"),
		"my-fleet.beat.gpu.*":                   f.BeatFilter("gpu"),
		"MY-FLEET_CLAIMS":                       f.ClaimsStream(),
		"my-fleet.claim.> my-fleet.heartbeat.>": strings.Join(f.ClaimsSubjects(), " "),
		"my-fleet.call.gpu.lane.lane.pause":     f.PauseSubject("gpu", "lane"),
		"my-fleet.call.gpu.lane.>":              f.MailboxFilter("gpu", "lane"),
		"my-fleet.call.gpu.>":                   f.MailboxesFilter("gpu"),
		"my-fleet.who.gpu":                      f.WhoSubject("gpu"),
		"my-fleet.ask.gpu":                      f.AskAllSubject("gpu"),
		"my-fleet.ask.gpu.lane":                 f.AskSubject("gpu", "lane"),
		"my-fleet.ask.gpu.*":                    f.AskFilter("gpu"),
		"my-fleet.ready.gpu.lane":               f.ReadySubject("gpu", "lane"),
		"my-fleet.ready.gpu.*":                  f.ReadyFilter("gpu"),
		"my-fleet.result.s.c-1":                 f.ResultSubject("s", "c-1"),
		"my-fleet.result.s.c-1.none.17":         f.NoResultSubject("s", "c-1", 17),
		"my-fleet.result.s.>":                   f.ResultsFilter("s"),
		"my-fleet.done.s.c-1":                   f.DoneSubject("s", "c-1"),
		"my-fleet.done.s.*":                     f.DoneFilter("s"),
		"my-fleet.event.s":                      f.EventSubject("s"),
		"my-fleet.output.s.c-1":                 f.OutputSubject("s", "c-1"),
		"my-fleet.question.gpu.s.c-1":           f.QuestionSubject("gpu", "s", "c-1"),
		"my-fleet.answer.gpu.s.c-1":             f.AnswerSubject("gpu", "s", "c-1"),
		"my-fleet.output.s.*":                   f.OutputFilter("s"),
		"my-fleet.live.s.c-1":                   f.LiveSubject("s", "c-1"),
		"my-fleet.live.s.*":                     f.LiveFilter("s"),
		"MY-FLEET_CALLS":                        f.CallsStream(),
		"MY-FLEET_RESULTS":                      f.ResultsStream(),
		"MY-FLEET_SESSIONS":                     f.SessionsStream(),
		"MY-FLEET_WORKSPACES":                   f.WorkspacesStream(),
		"MY-FLEET_BODIES":                       f.BodiesBucket(),
		"my-fleet.workspace.LANE":               f.WorkspaceSubject("LANE"),
		"MY-FLEET_BLOBS":                        f.BlobsBucket(),
		"MY-FLEET_KEPT":                         f.KeptBucket(),
		"MY-FLEET_PLACES":                       f.PlacesBucket(),
		"ready_gpu":                             f.ReadyConsumer("gpu"),
		"care_gpu":                              f.CareConsumer("gpu"),
		"my-fleet.call.> my-fleet.ready.>":      strings.Join(f.CallsSubjects(), " "),
		"my-fleet.result.>":                     strings.Join(f.ResultsSubjects(), " "),
		"my-fleet.event.*":                      strings.Join(f.SessionsSubjects(), " "),
	} {
		require.Equal(t, want, got)
	}
	source, destination := f.DoneMapping()
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
	require.Equal(t, protocol.MailboxEntry{Kind: protocol.EntryPause}, f.ParseMailboxSubject(f.PauseSubject("gpu", "lane")))
	require.Equal(t, protocol.MailboxEntry{}, f.ParseMailboxSubject("tf.call.p.l.c.pause"))
}

func TestLaneOfSubject(t *testing.T) {
	t.Parallel()
	const f = protocol.DefaultFleet
	for name, test := range map[string]struct {
		subject protocol.Subject
		lane    protocol.LaneHash
	}{
		"a ready message": {f.ReadySubject("gpu", "h"), "h"},
		"a call":          {f.CallSubject("gpu", "h", "c"), "h"},
		"a mark":          {f.StartSubject("gpu", "h", "c", 2), "h"},
		"a claim":         {f.ClaimSubject("gpu", "h"), "h"},
		"another fleet":   {protocol.Fleet("other").ReadySubject("gpu", "h"), ""},
		"a result":        {f.ResultSubject("s", "c"), ""},
		"nothing":         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.lane, f.LaneOfSubject(test.subject))
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
			require.Equal(t, protocol.MailboxEntry{}, protocol.DefaultFleet.ParseMailboxSubject(subject))
		})
	}
}
