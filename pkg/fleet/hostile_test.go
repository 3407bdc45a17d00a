package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// hostile is a fleet with two pools and a session, and somebody who has the key of a worker of the
// first pool.
type hostile struct {
	t                *testing.T
	place            place
	owner, poolOwner *nats.Conn
	js, poolJS       jetstream.JetStream // of these
	worker           *nats.Conn
}

const victim = "victim" // a session, a call and a lane of others

func newHostile(t *testing.T, file string) *hostile {
	t.Helper()
	p := deployed(t, file)
	makePool(t, p)
	h := &hostile{t: t, place: p, owner: p.connect(t, p.coordinator, nil), poolOwner: p.connect(t, p.pool, nil), worker: p.connect(t, p.worker, nil)}
	var err error
	h.js, err = jetstream.New(h.owner, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	h.poolJS, err = jetstream.New(h.poolOwner, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // as in makePool
		require.NoError(c, natsio.Ensure(t.Context(), h.js, natsio.Topology{Storage: natsio.Storage{Replicas: p.replicas}}))
	}, 3*time.Minute, 100*time.Millisecond)
	require.NoError(t, natsio.MakePool(t.Context(), h.js, fleetName, "other"))
	for _, subject := range []string{
		wire.EventSubject(fleetName, victim), wire.ResultSubject(fleetName, victim, victim), wire.ReadySubject(fleetName, "other", victim),
		wire.CallSubject(fleetName, "other", victim, victim), "$O.TF_KEPT.C.x", wire.WorkspaceSubject(fleetName, victim),
	} {
		_, err := h.js.Publish(t.Context(), subject, []byte("secret"))
		require.NoError(t, err)
	}
	_, err = h.poolJS.Publish(t.Context(), wire.ReadySubject(fleetName, protocol.DefaultPool, "mine"), []byte("secret"))
	require.NoError(t, err)
	return h
}

const fleetName = protocol.DefaultFleet

// publishes and subscribes report whether the server refuses.
func (h *hostile) publishes(subject string) (refused bool) {
	return h.refuses(subject, h.worker.Publish(subject, []byte(`{}`)))
}

func (h *hostile) subscribes(subject string) (refused bool) {
	_, err := h.worker.SubscribeSync(subject)
	return h.refuses(subject, err)
}

func (h *hostile) refuses(subject string, err error) bool {
	h.t.Helper()
	require.NoError(h.t, err)
	require.NoError(h.t, h.worker.FlushTimeout(time.Minute))
	last := h.worker.LastError()
	return errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), subject+`"`)
}

// answers reports whether the server answers a request of the worker with something secret.
func (h *hostile) answers(subject, body string) bool {
	h.t.Helper()
	reply, err := h.worker.Request(subject, []byte(body), time.Minute)
	require.NoError(h.t, err)
	return len(reply.Data) > 0 && !strings.Contains(string(reply.Data), `"error"`)
}

// attempts are what somebody with a worker's key may try. The documents tell those that are refused
// and those that are not, in these words.
func (h *hostile) attempts() map[string][]bool {
	each := func(does func(string) bool, subjects ...string) (all []bool) {
		for _, subject := range subjects {
			all = append(all, does(subject))
		}
		return all
	}
	calls, api := wire.CallsStream(fleetName), "$JS.API."
	return map[string][]bool{
		"read a journal": append(each(h.publishes, api+"STREAM.MSG.GET.TF_SESSIONS", api+"DIRECT.GET.TF_SESSIONS", api+"CONSUMER.CREATE.TF_SESSIONS.x"),
			h.subscribes("tf.event.>"), h.subscribes("tf.>")),
		"read inboxes of coordinators":                                 each(h.subscribes, "_INBOX.>", "_INBOX_fleet.>", "_INBOX_fleet_default.>", ">"),
		"write inboxes of coordinators":                                each(h.publishes, "_INBOX.x", "_INBOX_fleet.x", "_INBOX_fleet_default.x"),
		"write a journal":                                              each(h.publishes, "tf.event."+victim),
		"receive others' output and results as they come":              each(h.subscribes, "tf.output.>", "tf.done.>", "tf.result.>"),
		"approve a call":                                               each(h.publishes, "tf.approval."+victim+"."+victim),
		"ask a person something in a session's name":                   each(h.publishes, "tf.live."+victim+"."+victim),
		"end a call by a result that names it and is stored elsewhere": {true}, // internal/calls tries it
		"store a result for a call of a session before it is sent":     {true}, // pkg/loop tries it
		"answer what a call asks of a person":                          each(h.publishes, "tf.answer.default."+victim+"."+victim),
		"ask a person in the name of another pool's call": append(each(h.publishes, "tf.question.other."+victim+"."+victim),
			h.subscribes("tf.answer.other.>")),
		"make the server publish on any other subject, also through an answer": {true}, // TestDeploy_EachUserAndEachSubject tries it
		"decide where contents of workspaces are stored":                       each(h.publishes, "$KV.TF_PLACES.bodies", "$KV.TF_PLACES.secret"),
		"start a turn": each(h.publishes, "tf.call.session.lane.call", "tf.ready.session.lane"),
		"take or enqueue calls of another pool": append(each(h.publishes, "tf.call.other.lane.call", "tf.ready.other.lane", "tf.claim.other.lane",
			api+"CONSUMER.MSG.NEXT."+calls+".ready_other", "$JS.ACK."+calls+".ready_other.1.1.1.1.1"), h.subscribes("tf.stored.other.>")),
		"read calls of other pools, by their sequence": {h.readsNoneOfOthers()},
		"make, change or delete a consumer": each(h.publishes, api+"CONSUMER.CREATE."+calls+".ready_default.tf.ready.default.*", api+"CONSUMER.CREATE."+calls+".x",
			api+"CONSUMER.DURABLE.CREATE."+calls+".ready_default", api+"CONSUMER.DELETE."+calls+".ready_default", api+"CONSUMER.PAUSE."+calls+".ready_default"),
		"make, change, purge or delete a stream of calls, claims, results or journals": each(h.publishes,
			api+"STREAM.CREATE.X", api+"STREAM.UPDATE."+calls, api+"STREAM.DELETE."+calls,
			api+"STREAM.PURGE."+calls, api+"STREAM.PURGE.TF_CLAIMS", api+"STREAM.PURGE.TF_RESULTS", api+"STREAM.PURGE.TF_SESSIONS"),
		"delete a result or a journal's event": each(h.publishes, api+"STREAM.MSG.DELETE.TF_RESULTS", api+"STREAM.MSG.DELETE.TF_SESSIONS"),
	}
}

// TestDeploy_AWorkersKeyIsNotTheFleets: what the documents say is refused, is.
func TestDeploy_AWorkersKeyIsNotTheFleets(t *testing.T) {
	t.Parallel()
	for _, file := range []string{accountsFile, serverFile} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			h := newHostile(t, file)
			before, told, attempts := h.state(), whoMayDoWhat(t), h.attempts()
			for what, refused := range attempts {
				require.NotContains(t, refused, false, what)
				require.Equal(t, "no", told[what], what)
			}
			require.Equal(t, before, h.state())
			for what, may := range told {
				if may == "no" {
					require.Contains(t, attempts, what, "the documents tell of it")
				}
			}
		})
	}
}

// inItsPool is what the documents say of what the account of a pool keeps within it.
const inItsPool = "in its pool alone"

// TestDeploy_WhatAWorkersKeyMay: the documents tell it, because subjects are too coarse for less.
// It reaches what is in the account of its pool.
func TestDeploy_WhatAWorkersKeyMay(t *testing.T) {
	t.Parallel()
	h := newHostile(t, accountsFile)
	elsewhere, told := h.state(), whoMayDoWhat(t)
	_, err := h.poolJS.Publish(t.Context(), wire.ResultSubject(fleetName, "own", "own"), nil)
	require.NoError(t, err)
	for what, does := range map[string]bool{
		"read any result": h.answers("$JS.API.STREAM.MSG.GET.TF_RESULTS", `{"seq":1}`),
		"remove calls and claims, by their sequence":      h.answers("$JS.API.STREAM.MSG.DELETE.TF_CALLS", `{"seq":1}`),
		"store a result for a call that it does not hold": !h.publishes("tf.result." + victim + ".other"),
		"read, replace and remove large payloads, stored outputs and contents of workspaces": h.answers("$JS.API.STREAM.PURGE.OBJ_TF_KEPT", `{}`) &&
			!h.publishes("$O.TF_KEPT.C.x"),
		"ask a person in the name of a call": !h.publishes("tf.question.default." + victim + "." + victim),
		"enqueue calls":                      !h.publishes("tf.call.default.lane.call"),
	} {
		require.True(t, does, what)
		require.Equal(t, inItsPool, told[what], what)
	}
	require.Equal(t, elsewhere, h.state())
}

// readsNoneOfOthers reports whether the worker can read no call of another pool.
func (h *hostile) readsNoneOfOthers() bool {
	for seq := 1; seq < 10; seq++ {
		reply, err := h.worker.Request("$JS.API.STREAM.MSG.GET.TF_CALLS", fmt.Appendf(nil, `{"seq":%d}`, seq), time.Minute)
		require.NoError(h.t, err)
		if strings.Contains(string(reply.Data), "tf.ready.other."+victim) {
			return false
		}
	}
	return true
}

// state is what the worker must not change, and poolState what workers do.
func (h *hostile) state() map[string]any { return h.stateOf(h.js) }

func (h *hostile) poolState() map[string]any { return h.stateOf(h.poolJS) }

func (h *hostile) stateOf(js jetstream.JetStream) map[string]any {
	all := map[string]any{}
	for _, name := range []string{wire.CallsStream(fleetName), wire.ClaimsStream(fleetName), wire.ResultsStream(fleetName), wire.SessionsStream(fleetName)} {
		stream, err := js.Stream(h.t.Context(), name)
		require.NoError(h.t, err)
		all[name] = stream.CachedInfo().Config
		all[name+" messages"] = stream.CachedInfo().State.Msgs
		all[name+" last"] = stream.CachedInfo().State.LastSeq
		all[name+" consumers"] = stream.CachedInfo().State.Consumers
	}
	return all
}

// whoMayDoWhat is what the documents list: what a worker's key allows.
func whoMayDoWhat(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations", "start.md"))
	require.NoError(t, err)
	told := map[string]string{}
	for lead, may := range map[string]string{
		"A worker's password does not allow to:\n\n": "no",
		"It allows, in its pool alone, to:\n\n":      inItsPool,
	} {
		_, list, found := strings.Cut(string(page), lead)
		require.True(t, found, lead)
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.SplitSeq(list, "\n") {
			what, _, _ := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
			told[what] = may
		}
	}
	return told
}

// viewer is a model that reads a picture once, and notes what images it is shown.
type viewer struct {
	asked bool
	shown []*loop.Image
}

func (v *viewer) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	v.shown = nil
	for _, message := range request.Messages {
		if message.Image != nil {
			v.shown = append(v.shown, message.Image)
		}
	}
	if v.asked {
		return loop.Reply{Text: "I see."}, nil
	}
	v.asked = true
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "a", Name: "read", Arguments: `{"path":"p.png"}`}}}, nil
}

// A picture that no message holds reaches the model, and one that resumes the session.
func TestRun_ImagesOutliveTheirCoordinator(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var small bytes.Buffer
	require.NoError(t, png.Encode(&small, image.NewGray(image.Rect(0, 0, 1, 1))))
	picture := append(small.Bytes(), bytes.Repeat([]byte{7}, render.MaxImageBytes-small.Len())...)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "p.png"), picture, 0o600))
	run := func(model *viewer) {
		runner, err := b.Runner(model, b.table, nil)
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), "s", loop.Input{Text: "What is it?"})
		require.NoError(t, err)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Len(t, model.shown, 1)
		require.Equal(t, "image/png", model.shown[0].MediaType)
		require.Equal(t, picture, model.shown[0].Data)
	}
	run(&viewer{})
	run(&viewer{asked: true})
}
