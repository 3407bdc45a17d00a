package approval_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnswer_ReachesTheQuestion(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	session, call := protocol.NewSessionID(), wire.RandomCallID()
	asked := make(chan protocol.Approval, 1)
	go func() {
		answer, err := approval.Waiter(f.Connect(), f.Name, nil)(t.Context(), loop.ApprovalRequest{SessionID: session, CallID: call})
		if err != nil {
			t.Error(err)
		}
		asked <- answer
	}()
	nc := f.Connect()
	awaitQuestion(t, nc, wire.ApprovalSubject(f.Name, session, call))
	forged, err := wire.Encode(&protocol.Approval{Granted: true, By: "a server's answer"})
	require.NoError(t, err)
	require.NoError(t, nc.Publish(wire.ApprovalSubject(f.Name, session, call), forged), "it is no request")
	require.NoError(t, nc.PublishRequest(wire.ApprovalSubject(f.Name, session, call), "$JS.ACK.stream.consumer", forged))
	require.NoError(t, say(t, nc, f.Name, session, call, protocol.Approval{Granted: true, By: "ada", Note: "go"}))
	require.Equal(t, protocol.Approval{Granted: true, By: "ada (claimed)", Note: "go", Via: "fleet"}, <-asked, "the name is not checked")
	require.ErrorIs(t, say(t, nc, f.Name, session, call, protocol.Approval{}), approval.ErrNotAsked, "it was answered")
}

// TestAnswer_WaitsForABusyOne: whoever waits for an answer has much to do before it confirms it.
func TestAnswer_WaitsForABusyOne(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	session, call := protocol.NewSessionID(), wire.RandomCallID()
	nc := f.Connect()
	_, err := nc.Subscribe(wire.ApprovalSubject(f.Name, session, call), func(message *nats.Msg) {
		time.AfterFunc(3*time.Second, func() { _ = message.Respond([]byte(wire.AnswerTaken)) }) // longer than it looks for a question
	})
	require.NoError(t, err)
	require.NoError(t, nc.FlushTimeout(time.Minute))
	require.NoError(t, say(t, f.NC, f.Name, session, call, protocol.Approval{}))
	require.True(t, approval.Waits(t.Context(), f.NC, f.Name, session, call), "it does not say no")
}

// A worker may listen to all answers of its pool. What a session asks is none of them.
func TestAnswer_OfASessionIsNotTakenByAWorker(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	session, call := protocol.NewSessionID(), wire.RandomCallID()
	heard := make(chan string, 10)
	_, err := f.NC.Subscribe(wire.AnswerSubject(f.Name, protocol.DefaultPool, "*", "*"), func(message *nats.Msg) {
		heard <- string(message.Data)
		_ = message.Respond([]byte(wire.AnswerTaken))
	})
	require.NoError(t, err)
	listen := func(subject wire.Subject) chan string {
		got := make(chan string, 10)
		_, err := f.NC.Subscribe(subject, func(message *nats.Msg) {
			got <- string(message.Data)
			_ = message.Respond([]byte(wire.AnswerTaken))
		})
		require.NoError(t, err)
		require.NoError(t, f.NC.FlushTimeout(time.Minute))
		return got
	}
	nc := f.Connect()
	asks := listen(wire.AnswerSubject(f.Name, protocol.SessionPool, session, call))
	asked := approval.Asked{Pool: protocol.DefaultPool, Session: session, Call: call}
	require.NoError(t, approval.Reply(t.Context(), nc, nc, f.Name, asked, protocol.Answer{Action: protocol.ActionDecline}))
	require.Len(t, asks, 1)
	waits := listen(wire.ApprovalSubject(f.Name, session, call))
	require.NoError(t, say(t, nc, f.Name, session, call, protocol.Approval{Granted: true}))
	require.Len(t, waits, 1)
	require.Empty(t, heard)
}

// say answers the question about a call.
func say(t *testing.T, nc *nats.Conn, fleet protocol.Fleet, session protocol.SessionID, call protocol.CallID, answer protocol.Approval) error {
	t.Helper()
	return approval.Say(t.Context(), nc, nc, fleet, approval.Asked{Pool: protocol.DefaultPool, Session: session, Call: call}, answer)
}

// awaitQuestion waits until a question is put. An answer that makes no sense does not end it.
func awaitQuestion(t *testing.T, nc *nats.Conn, subject wire.Subject) {
	t.Helper()
	require.Eventually(t, func() bool {
		reply, err := nc.Request(subject, []byte(`{"type":"other"}`), time.Second)
		return err == nil && string(reply.Data) != "taken"
	}, time.Minute, time.Millisecond)
}

func TestWaiter_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := approval.Waiter(f.NC, f.Name, nil)(ctx, loop.ApprovalRequest{SessionID: "s", CallID: "c"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Questions of two calls at once: each gets its own answer.
func TestWaiter_TwoQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	session := protocol.NewSessionID()
	calls := []protocol.CallID{wire.RandomCallID(), wire.RandomCallID()}
	answers := make([]chan protocol.Approval, len(calls))
	wait := approval.Waiter(f.Connect(), f.Name, nil)
	for i, call := range calls {
		answers[i] = make(chan protocol.Approval, 1)
		go func() {
			answer, err := wait(t.Context(), loop.ApprovalRequest{SessionID: session, CallID: call})
			if err != nil {
				t.Error(err)
			}
			answers[i] <- answer
		}()
	}
	for i, call := range slices.Backward(calls) {
		awaitQuestion(t, f.NC, wire.ApprovalSubject(f.Name, session, call))
		require.NoError(t, say(t, f.NC, f.Name, session, call, protocol.Approval{Granted: i == 0}))
	}
	require.True(t, (<-answers[0]).Granted)
	require.False(t, (<-answers[1]).Granted)
}

// TestPut_WaitsForAnAnswerThatFits: a person may be slow, wrong, and right in the end.
func TestPut_WaitsForAnAnswerThatFits(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	asked := approval.Asked{Pool: protocol.SessionPool, Session: protocol.NewSessionID(), Call: wire.RandomCallID()}
	listening, answered := make(chan struct{}), make(chan protocol.Answer, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		fits := wire.PersonRequest{Choices: []string{"red", "blue"}}.Fits
		answer, err := approval.Put(ctx, f.Connect(), f.Name, nil, asked, "1", fits, func() error { close(listening); return nil })
		if err != nil {
			t.Error(err)
		}
		answered <- answer
	}()
	<-listening
	nc := f.Connect()
	require.True(t, approval.Asks(ctx, nc, f.Name, asked))
	require.NoError(t, approval.TakeOn(nc, f.Name, asked, "1"))
	asked.Pool = protocol.DefaultPool // a session may be answered from any pool
	for content, says := range map[string]string{
		``: "an answer needs a content", `{"answer":"green"}`: `answer "green": must be one of red, blue`, `[]`: "an answer needs a content",
	} {
		err := approval.Reply(ctx, nc, nc, f.Name, asked, protocol.Answer{Action: protocol.ActionAccept, Content: []byte(content)})
		require.ErrorIs(t, err, approval.ErrRefused)
		require.ErrorContains(t, err, says)
	}
	err := approval.Reply(ctx, nc, nc, f.Name, asked, protocol.Answer{Question: "2", Action: protocol.ActionDecline})
	require.ErrorContains(t, err, "another question")
	require.NoError(t, approval.Reply(ctx, nc, nc, f.Name, asked, protocol.Answer{Action: protocol.ActionAccept, Content: []byte(`{"answer":"blue"}`), By: "ada"}))
	require.Equal(t, "ada (claimed)", (<-answered).By)
	require.ErrorIs(t, approval.Say(ctx, nc, nc, f.Name, asked, protocol.Approval{Granted: true}), approval.ErrNotAsked)
}

// signers are keys of tenants, by the tenant, and the file of their public keys.
func signers(t *testing.T, tenants ...string) (map[string]*signing.Signer, string) {
	t.Helper()
	var all []byte
	of := map[string]*signing.Signer{}
	for _, tenant := range tenants {
		dir := t.TempDir()
		key, err := signing.Make(dir)
		require.NoError(t, err)
		body, err := os.ReadFile(filepath.Join(dir, signing.PublicFile))
		require.NoError(t, err)
		all = append(all, bytes.Replace(body, []byte("KEY-----\n"), []byte("KEY-----\nTenant: "+tenant+"\n\n"), 1)...)
		of[tenant] = key
	}
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, all, 0o600))
	return of, file
}

// signedCase is a session of a tenant whose process trusts keys: which signers are refused, by what
// the refusal says, and which one counts, under which name.
type signedCase struct {
	keys   *signing.Keys
	tenant protocol.Tenant
	wrong  map[string]*signing.Signer
	right  *signing.Signer
	by     string
}

func signedCases(t *testing.T) map[string]signedCase {
	t.Helper()
	of, file := signers(t, "acme", "other")
	acme, other := of["acme"], of["other"]
	stranger, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	strict, err := signing.Open(file)
	require.NoError(t, err)
	own, err := signing.OpenFor(acme, "")
	require.NoError(t, err)
	return map[string]signedCase{
		"only trusted keys": {
			strict, "acme",
			map[string]*signing.Signer{"serve --call-keys": nil, "is signed with a key which": stranger, "tenant acme": other},
			acme, "ada (key:" + acme.ID() + ")",
		},
		"its own key": {own, "acme", map[string]*signing.Signer{"tenant acme": nil, "a principal of tenant acme": other}, acme, "ada (key:" + acme.ID() + ")"},
		"the default": {own, "default", nil, nil, "ada (claimed)"},
	}
}

// With keys, an answer counts only if who has signed it may approve calls of the session: not
// without a signature, not by a key of another tenant, and not for another call.
func TestAnswer_IsOfWhoMayGiveIt(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for name, c := range signedCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := approval.Asked{Pool: protocol.DefaultPool, Session: protocol.NewSessionID(), Call: wire.RandomCallID()}
			answered := make(chan protocol.Approval, 1)
			go func() {
				ctx := wire.WithOwner(t.Context(), judge.Owner{Tenant: c.tenant, By: "token:ann"})
				answer, err := approval.Waiter(f.Connect(), f.Name, c.keys)(ctx, loop.ApprovalRequest{SessionID: asked.Session, CallID: asked.Call})
				if err != nil {
					t.Error(err)
				}
				answered <- answer
			}()
			nc := f.Connect()
			awaitQuestion(t, nc, wire.ApprovalSubject(f.Name, asked.Session, asked.Call))
			say := func(signer *signing.Signer) error {
				asked.Signer = signer
				return approval.Say(t.Context(), nc, nc, f.Name, asked, protocol.Approval{Granted: true, By: "ada"})
			}
			for says, signer := range c.wrong {
				err := say(signer)
				require.ErrorIs(t, err, approval.ErrRefused)
				require.ErrorContains(t, err, "approve session "+string(asked.Session))
				require.ErrorContains(t, err, says)
			}
			require.Empty(t, answered)
			require.NoError(t, say(c.right))
			require.Equal(t, protocol.Approval{Granted: true, By: c.by, Via: "fleet"}, <-answered)
		})
	}
}

// With keys, an answer to a question counts only from one who may use the session, whether it is
// the answer itself, a request to wait for it, or yes or no. A signed one is about one question
// only.
func TestQuestion_IsOfWhoMayUseTheSession(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for name, c := range signedCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := approval.Asked{Pool: protocol.SessionPool, Session: protocol.NewSessionID(), Call: wire.RandomCallID()}
			listening, answered := make(chan struct{}, 2), make(chan protocol.Answer, 2)
			put := func(question string) {
				ctx, cancel := context.WithTimeout(wire.WithOwner(t.Context(), judge.Owner{Tenant: c.tenant, By: "token:ann"}), 5*time.Minute)
				defer cancel()
				fits := func(protocol.Answer) error { return nil }
				answer, err := approval.Put(ctx, f.Connect(), f.Name, c.keys, asked, question, fits, func() error { listening <- struct{}{}; return nil })
				if err != nil {
					t.Error(err)
				}
				answered <- answer
			}
			go put("1")
			<-listening
			nc := f.Connect()
			copied := make(chan *nats.Msg, 100)
			_, err := f.NC.ChanSubscribe(wire.AnswerSubject(f.Name, protocol.SessionPool, asked.Session, asked.Call), copied)
			require.NoError(t, err)
			require.NoError(t, f.NC.FlushTimeout(time.Minute))
			accept := protocol.Answer{Action: protocol.ActionAccept, Content: []byte(`{}`), By: "ada"}
			for says, signer := range c.wrong {
				by := asked
				by.Signer = signer
				for _, err := range []error{
					approval.Reply(t.Context(), nc, nc, f.Name, by, accept), approval.Say(t.Context(), nc, nc, f.Name, by, protocol.Approval{Granted: true, By: "ada"}),
					approval.Reply(t.Context(), nc, nc, f.Name, by, protocol.Answer{Question: "1", Action: protocol.ActionWait}),
				} {
					require.ErrorIs(t, err, approval.ErrRefused)
					require.ErrorContains(t, err, "use session "+string(asked.Session))
					require.ErrorContains(t, err, says)
				}
			}
			require.True(t, approval.Asks(t.Context(), nc, f.Name, asked), "the question stays")
			require.Empty(t, answered)
			asked.Signer = c.right
			require.NoError(t, approval.Say(t.Context(), nc, nc, f.Name, asked, protocol.Approval{Granted: true, By: "ada"}))
			answer := <-answered
			require.Equal(t, []string{"accept", c.by}, []string{string(answer.Action), answer.By})
			if c.right == nil {
				return
			}
			require.Equal(t, "1", answer.Question, "what is signed names it")
			go put("2") // the call asks once more
			<-listening
			for n := 0; n < 2; { // without the question, and with it
				again := <-copied
				if !strings.HasPrefix(again.Header.Get(wire.HeaderSigned), c.right.ID()+" ") {
					continue
				}
				n++
				reply, err := nc.RequestMsg(&nats.Msg{Subject: again.Subject, Header: again.Header, Data: again.Data}, time.Minute)
				require.NoError(t, err)
				require.NotEqual(t, wire.AnswerTaken, string(reply.Data), "a copy counts for no other question")
			}
			require.NoError(t, approval.Reply(t.Context(), nc, nc, f.Name, asked, protocol.Answer{Action: protocol.ActionDecline}))
			require.Equal(t, "2", (<-answered).Question)
		})
	}
}
