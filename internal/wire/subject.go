package wire

import (
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// stored is the name of a stream or bucket of a fleet.
func stored(f protocol.Fleet, name string) string { return strings.ToUpper(string(f)) + "_" + name }

// CallsStream is the stream of mailboxes and ready messages.
func CallsStream(f protocol.Fleet) string { return stored(f, "CALLS") }

// ClaimsStream is the stream of claims and heartbeats: who holds which lane, and who is alive.
func ClaimsStream(f protocol.Fleet) string { return stored(f, "CLAIMS") }

// ResultsStream is the stream of terminal results.
func ResultsStream(f protocol.Fleet) string { return stored(f, "RESULTS") }

// SessionsStream is the stream of session journals.
func SessionsStream(f protocol.Fleet) string { return stored(f, "SESSIONS") }

// WorkspacesStream is the stream of the checkpoints of workspaces.
func WorkspacesStream(f protocol.Fleet) string { return stored(f, "WORKSPACES") }

// BodiesBucket is the object store bucket for the contents of workspaces.
func BodiesBucket(f protocol.Fleet) string { return stored(f, "BODIES") }

// WorkspaceSubject has the checkpoints of the workspace of a lane, one after the other.
func WorkspaceSubject(f protocol.Fleet, lane LaneHash) Subject {
	return string(f) + ".workspace." + string(lane)
}

// WorkspacesSubjects are the subjects of the workspaces stream.
func WorkspacesSubjects(f protocol.Fleet) []Subject { return []Subject{WorkspaceSubject(f, "*")} }

// KeptBucket is the object store bucket for what is kept of sessions until they are removed.
func KeptBucket(f protocol.Fleet) string { return stored(f, "KEPT") }

// BlobsBucket is the object store bucket for bodies that no message can carry.
func BlobsBucket(f protocol.Fleet) string { return stored(f, "BLOBS") }

// SchedulesBucket is the key-value bucket of schedules.
func SchedulesBucket(f protocol.Fleet) string { return stored(f, "SCHEDULES") }

// ChannelsStream is the stream of messages between sessions.
func ChannelsStream(f protocol.Fleet) string { return stored(f, "CHANNELS") }

// MessageSubject has one message of a channel, TENANT.NAME. It is unique, and the stream takes one
// message a subject: a call that sends again is refused.
func MessageSubject(f protocol.Fleet, channel string, from protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".message." + channel + "." + string(from) + "." + string(call)
}

// SentFilter matches the messages of a channel as the server republishes them, each when it is
// stored; "*.*" is any channel.
func SentFilter(f protocol.Fleet, channel string) Subject {
	return string(f) + ".sent." + channel + ".*.*"
}

// SentMapping is the republish rule of the channels stream: source and destination.
func SentMapping(f protocol.Fleet) (source, destination Subject) {
	return string(f) + ".message.>", string(f) + ".sent.>"
}

// PartsOfMessage returns the channel, the sender and the call of a message stored or republished.
func PartsOfMessage(subject Subject) (channel string, from protocol.SessionID, call protocol.CallID) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 6 {
		return "", "", ""
	}
	return tokens[2] + "." + tokens[3], protocol.SessionID(tokens[4]), protocol.CallID(tokens[5])
}

// WebhooksBucket is the key-value bucket of webhooks, their secrets, and what waits to be sent.
func WebhooksBucket(f protocol.Fleet) string { return stored(f, "WEBHOOKS") }

// LimitsBucket is the key-value bucket of the fleet's limits, all under the key [LimitsKey].
func LimitsBucket(f protocol.Fleet) string { return stored(f, "LIMITS") }

// LimitsKey is the one key of [LimitsBucket].
const LimitsKey = "rules"

// LimitsSubject is where the limits are stored.
func LimitsSubject(f protocol.Fleet) Subject { return "$KV." + LimitsBucket(f) + "." + LimitsKey }

// PlacesBucket is the key-value bucket with where the contents of workspaces are, the secret of the
// fleet, its tokens, and its browsers. Only coordinators read it whole.
func PlacesBucket(f protocol.Fleet) string { return stored(f, "PLACES") }

// BodiesKey is the key in [PlacesBucket] of where the contents of workspaces are.
const BodiesKey = "bodies"

// TokensKey is the key in [PlacesBucket] of the tokens of clients over HTTP, and TokensSubject
// where they are stored.
const TokensKey = "tokens"

// TokensSubject is described at [TokensKey].
func TokensSubject(f protocol.Fleet) Subject { return "$KV." + PlacesBucket(f) + "." + TokensKey }

// BrowsersKey is the key in [PlacesBucket] of the record that says who is signed in by browsers,
// and BrowsersSubject its subject.
const BrowsersKey = "browsers"

// BrowsersSubject is described at [BrowsersKey].
func BrowsersSubject(f protocol.Fleet) Subject { return "$KV." + PlacesBucket(f) + "." + BrowsersKey }

// Subject is a NATS subject of a fleet. With "*" for one of its parts, or ">" for the last, it is a
// filter.
type Subject = string

// CallSubject is a call's own place in its lane's mailbox. It is unique, and the
// stream takes one message a subject: enqueueing twice is refused.
func CallSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, call protocol.CallID) Subject {
	return string(f) + ".call." + string(pool) + "." + string(lane) + "." + string(call)
}

// LaterSubject is where a call waits for its time, outside of its lane's mailbox. Like the call's
// own subject it takes one message.
func LaterSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, call protocol.CallID) Subject {
	return string(f) + ".call." + string(pool) + "." + tokenLater + "." + string(lane) + "." + string(call)
}

// LaterCancelSubject is the durable request to cancel a call that waits for its time.
func LaterCancelSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, call protocol.CallID) Subject {
	return LaterSubject(f, pool, lane, call) + "." + MarkCancel
}

// InFlightSubject has a mark for as long as a call of a tenant with a quota is in flight: from
// before it is accepted until after its result is stored. The mark is empty.
func InFlightSubject(f protocol.Fleet, pool protocol.Pool, tenant protocol.Tenant, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".call." + string(pool) + "." + tokenInFlight + "." + string(tenant) + "." + string(session) + "." + string(call)
}

// CallOfInFlight returns the session and the call of a mark.
func CallOfInFlight(subject Subject) (protocol.SessionID, protocol.CallID) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 7 || tokens[3] != tokenInFlight {
		return "", ""
	}
	return protocol.SessionID(tokens[5]), protocol.CallID(tokens[6])
}

// CancelSubject is the durable request, behind a call in its mailbox, to cancel it.
func CancelSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, call protocol.CallID) Subject {
	return CallSubject(f, pool, lane, call) + "." + MarkCancel
}

// StartSubject is the durable mark of a call's n-th start (n from 1). The
// stream accepts it once: a worker whose mark is refused did not make the n-th start.
func StartSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, call protocol.CallID, n int) Subject {
	return CallSubject(f, pool, lane, call) + "." + markStart + strconv.Itoa(n)
}

// ClaimSubject is the record of a lane's holder. Nothing is stored there while the lane is free;
// the stream sequence of the record is the epoch of the claim.
func ClaimSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".claim." + string(pool) + "." + string(lane)
}

// HeartbeatSubject is the record of a worker's life; it is renewed for as long as that lasts.
func HeartbeatSubject(f protocol.Fleet, pool protocol.Pool, life IncarnationID) Subject {
	return string(f) + ".heartbeat." + string(pool) + "." + string(life)
}

// BeatFilter matches the heartbeats of a pool as the server republishes them.
func BeatFilter(f protocol.Fleet, pool protocol.Pool) Subject {
	return string(f) + ".beat." + string(pool) + ".*"
}

// ClaimsSubjects are the subjects of the claims stream.
func ClaimsSubjects(f protocol.Fleet) []Subject {
	return []Subject{string(f) + ".claim.>", string(f) + ".heartbeat.>"}
}

// BeatMapping is the republish rule of the claims stream: source and destination.
func BeatMapping(f protocol.Fleet) (source, destination Subject) {
	return string(f) + ".heartbeat.>", string(f) + ".beat.>"
}

// FloorSubject is a mark in a lane's mailbox that is stored after its claim of the given epoch: on
// several servers, an answer that knows it knows all that came before the claim.
func FloorSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, epoch uint64) Subject {
	return string(f) + ".call." + string(pool) + "." + string(lane) + "." + markFloor + "." +
		strconv.FormatUint(epoch, 10)
}

// PauseSubject is the durable mark that no call of a lane may start. It stands in the
// lane's mailbox, so that every reader finds the mark.
func PauseSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".call." + string(pool) + "." + string(lane) + "." + markLane + "." + markPause
}

// MailboxFilter matches everything in a lane's mailbox: calls and their marks.
func MailboxFilter(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".call." + string(pool) + "." + string(lane) + ".>"
}

// MailboxesFilter matches everything in the mailboxes of a pool.
func MailboxesFilter(f protocol.Fleet, pool protocol.Pool) Subject {
	return string(f) + ".call." + string(pool) + ".>"
}

// PoolFilter matches everything in the calls stream of a pool: mailboxes and ready messages.
func PoolFilter(f protocol.Fleet, pool protocol.Pool) Subject {
	return string(f) + ".*." + string(pool) + ".>"
}

// StoredFilter matches what the server repeats of a lane's mailbox, each message
// when it is stored.
func StoredFilter(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".stored." + string(pool) + "." + string(lane) + ".>"
}

// ReadySubject is the one message that says "this lane has work".
func ReadySubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".ready." + string(pool) + "." + string(lane)
}

// TicketSubject asks for a lane to be made ready when it is the turn of a flow. A ticket is stored
// only while the lane has no ready message; each lane has one of a flow at most.
func TicketSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash, c Flow) Subject {
	return ReadySubject(f, pool, lane) + "." + string(c.Tenant) + "." + c.token()
}

// FlowOfSubject returns the flow of a ticket; ok is false for any other subject.
func FlowOfSubject(subject Subject) (c Flow, ok bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 6 || tokens[1] != "ready" {
		return Flow{}, false
	}
	return parseFlow(tokens[4], tokens[5]), true
}

// WhoSubject asks every worker of a pool, on core NATS, for its [WorkerInfo].
func WhoSubject(f protocol.Fleet, pool protocol.Pool) Subject {
	return string(f) + ".who." + string(pool)
}

// AskSubject is for requests, on core NATS, to the holder of a lane about its state.
func AskSubject(f protocol.Fleet, pool protocol.Pool, lane LaneHash) Subject {
	return string(f) + ".ask." + string(pool) + "." + string(lane)
}

// AskAllSubject asks every worker of a pool, on core NATS, for the lanes that it holds.
func AskAllSubject(f protocol.Fleet, pool protocol.Pool) Subject {
	return string(f) + ".ask." + string(pool)
}

// ResultSubject is where a call's terminal result is stored, once.
func ResultSubject(f protocol.Fleet, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".result." + string(session) + "." + string(call)
}

// NoResultSubject is a note among the results that a call had none when it was about to be started
// once more. The token is a number that was never used before.
func NoResultSubject(f protocol.Fleet, session protocol.SessionID, call protocol.CallID, token uint64) Subject {
	return ResultSubject(f, session, call) + ".none." + strconv.FormatUint(token, 10)
}

// DoneSubject is where the server repeats a result the moment it is stored.
func DoneSubject(f protocol.Fleet, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".done." + string(session) + "." + string(call)
}

// EventSubject is a session's journal.
func EventSubject(f protocol.Fleet, session protocol.SessionID) Subject {
	return string(f) + ".event." + string(session)
}

// OutputSubject carries live frames of a running call: lossy, never the truth.
func OutputSubject(f protocol.Fleet, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".output." + string(session) + "." + string(call)
}

// LiveSubject carries live frames of a running turn, like [OutputSubject]: apart, because a
// turn's events may ask a person something, and no worker may publish here.
func LiveSubject(f protocol.Fleet, session protocol.SessionID, turn protocol.CallID) Subject {
	return string(f) + ".live." + string(session) + "." + string(turn)
}

// ApprovalSubject is where the answer to the question about a call goes.
func ApprovalSubject(f protocol.Fleet, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".approval." + string(session) + "." + string(call)
}

// QuestionSubject is where a running call asks a person, on core NATS, and whoever follows the call
// listens. Only workers of its pool ask there.
func QuestionSubject(f protocol.Fleet, pool protocol.Pool, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".question." + string(pool) + "." + string(session) + "." + string(call)
}

// AnswerSubject is where the answer to what a running call asks goes. Only workers of its pool hear
// it.
func AnswerSubject(f protocol.Fleet, pool protocol.Pool, session protocol.SessionID, call protocol.CallID) Subject {
	return string(f) + ".answer." + string(pool) + "." + string(session) + "." + string(call)
}

// CallsSubjects are the subjects of the calls stream.
func CallsSubjects(f protocol.Fleet) []Subject {
	return []Subject{string(f) + ".call.>", string(f) + ".ready.>"}
}

// StoredMapping is the republish rule of the calls stream: source and destination.
func StoredMapping(f protocol.Fleet) (source, destination Subject) {
	return string(f) + ".call.>", string(f) + ".stored.>"
}

// ResultsSubjects are the subjects of the results stream.
func ResultsSubjects(f protocol.Fleet) []Subject { return []Subject{string(f) + ".result.>"} }

// DoneMapping is the republish rule of the results stream: source and destination.
func DoneMapping(f protocol.Fleet) (source, destination Subject) {
	return string(f) + ".result.>", string(f) + ".done.>"
}

// SessionsSubjects are the subjects of the journal stream.
func SessionsSubjects(f protocol.Fleet) []Subject { return []Subject{string(f) + ".event.*"} }

// ReadyConsumer is the durable consumer that hands out a pool's ready lanes.
func ReadyConsumer(pool protocol.Pool) string { return "ready_" + string(pool) }

// CareConsumer is the durable consumer that delivers entries that waited in mailboxes for a while
// to a pool's workers.
func CareConsumer(pool protocol.Pool) string { return "care_" + string(pool) }

// Marks that follow a call id in a mailbox subject.
const (
	MarkCancel = "cancel"
	markStart  = "start"
	markFloor  = "floor"
	// Marks of the lane itself stand behind this word, at the position of a call's marks.
	markLane  = "lane"
	markPause = "pause"
	// tokenLater stands where the hash of a lane would, which it can never be.
	tokenLater = "later"
	// tokenInFlight stands there too.
	tokenInFlight = "inflight"
)

// MailboxEntryKind says what a message in a mailbox is.
type MailboxEntryKind uint8

// What a mailbox holds.
const (
	EntryUnknown     MailboxEntryKind = iota // something that this version does not know
	EntryCall                                // a call
	EntryCancel                              // a request to cancel a call
	EntryStart                               // a mark of a call's start
	EntryPause                               // a mark that no call of the lane may start
	EntryFloor                               // a mark that was stored after a claim
	EntryLater                               // a call that waits for its time
	EntryLaterCancel                         // a request to cancel such a call
)

// MailboxEntry is what a mailbox subject says about its message.
type MailboxEntry struct {
	Kind   MailboxEntryKind
	CallID protocol.CallID // of calls, cancels and starts, and of calls that wait for their time
	Start  int             // of starts: n, from 1
}

// ParseMailboxSubject reads the end of a mailbox subject of this fleet, also as the server repeats
// it. A subject that it does not understand yields kind [EntryUnknown].
func ParseMailboxSubject(f protocol.Fleet, subject Subject) MailboxEntry {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 5 || tokens[0] != string(f) || tokens[1] != "call" && tokens[1] != "stored" {
		return MailboxEntry{}
	}
	if tokens[3] == tokenInFlight {
		return MailboxEntry{}
	}
	isLater := tokens[3] == tokenLater
	tokens = tokens[4:]
	switch {
	case isLater && len(tokens) == 2:
		return MailboxEntry{Kind: EntryLater, CallID: protocol.CallID(tokens[1])}
	case isLater && len(tokens) == 3 && tokens[2] == MarkCancel:
		return MailboxEntry{Kind: EntryLaterCancel, CallID: protocol.CallID(tokens[1])}
	case isLater:
		return MailboxEntry{}
	case len(tokens) == 1:
		return MailboxEntry{Kind: EntryCall, CallID: protocol.CallID(tokens[0])}
	case len(tokens) != 2:
		return MailboxEntry{}
	case tokens[1] == MarkCancel:
		return MailboxEntry{Kind: EntryCancel, CallID: protocol.CallID(tokens[0])}
	case tokens[0] == markLane && tokens[1] == markPause: // a call may have this id, but has no such mark
		return MailboxEntry{Kind: EntryPause}
	}
	if start, ok := strings.CutPrefix(tokens[1], markStart); ok {
		n, err := strconv.Atoi(start)
		if err != nil || n < 1 {
			return MailboxEntry{}
		}
		return MailboxEntry{Kind: EntryStart, CallID: protocol.CallID(tokens[0]), Start: n}
	}
	// Last, for a call may have the id "floor": its marks are words, never numbers.
	if _, err := strconv.ParseUint(tokens[1], 10, 64); err == nil && tokens[0] == markFloor {
		return MailboxEntry{Kind: EntryFloor}
	}
	return MailboxEntry{}
}

// LifeOfSubject returns the life that a heartbeat of this fleet belongs to, also as the server
// republishes it; "" for any other subject.
func LifeOfSubject(f protocol.Fleet, subject Subject) IncarnationID {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 4 || tokens[0] != string(f) || tokens[1] != "heartbeat" && tokens[1] != "beat" {
		return ""
	}
	return IncarnationID(tokens[3])
}

// LaneOfSubject returns the lane that a mailbox or ready message, or a claim, of this fleet
// belongs to; "" for any other subject.
func LaneOfSubject(f protocol.Fleet, subject Subject) LaneHash {
	tokens := strings.SplitN(subject, ".", 6)
	switch {
	case len(tokens) < 4 || tokens[0] != string(f) || !slices.Contains([]string{"call", "ready", "claim"}, tokens[1]):
		return ""
	case tokens[3] == tokenInFlight:
		return ""
	case len(tokens) == 6 && tokens[3] == tokenLater:
		return LaneHash(tokens[4])
	}
	return LaneHash(tokens[3])
}
