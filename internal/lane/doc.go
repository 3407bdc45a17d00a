// Package lane is the engine that gives every resource its order. It stores calls in the mailboxes
// of lanes, lets one worker at a time hold a lane, runs the lane's calls in stream order, and
// stores exactly one result for each call.
//
//	          Publisher                     calls stream                       Holder
//	Enqueue ─► ready.<lane> (the call itself) ──────────► pull ──► claim: a record of its own
//	   │       refused: the lane is ready or held                    │ mailbox in sequence order
//	   └──► call.<lane>.<id> (mailbox) ───────────────────────────►  │ in-lane schedule
//	        ready.<lane> (empty; refused is fine)                    │ execute
//	                                                                 │ result stored, once
//	Results ◄── done.<session>.<id> ◄─── results stream ◄────────────┤ entry deleted
//	                                                                 ▼
//	                  release: delete ready message, last look, delete claim
//
// # Which record decides
//
// The calls stream decides which calls wait: the stream sequence is the order of a lane. The claims
// stream decides who holds a lane: a claim is a record at the lane's own subject, stored on the
// condition that there is none, and its sequence is the epoch. The results stream decides how a
// call ended: the first result wins, so there is exactly one. The pool's consumer only schedules: a
// wrong or early delivery costs one read of the claim. Messages on core NATS (offers, queries, live
// frames) may be lost.
//
// # Claims and incarnations
//
//	            claim: none yet                          release
//	free ─────────────────────► held by an incarnation ──────────► free
//	                               │            │
//	 heartbeat not renewed         │            │ drained, and running calls were killed
//	 for a lease, expired          ▼            ▼
//	              claim of an expired incarnation, or of none
//	                               │ replaced on the condition that it has not changed
//	                               ▼
//	              held by another incarnation, which knows that calls were interrupted
//
// An incarnation of a worker lasts as long as it renews its one heartbeat, by compare-and-set, for
// all its claims. The worker trusts its claims until four fifths of a lease after it sent the last
// acknowledged renewal. Other workers measure on their own clocks that the heartbeat has not
// changed for a lease, and then expire it on the condition that it still has not changed. If that
// write succeeds, no later renewal was stored. So a claim is replaced only after its owner has
// stopped trusting it, and clocks are never compared. An incarnation that lost its lease kills its
// calls, stores nothing more, and never returns; its worker starts a new incarnation.
//
// A worker that sees an expired incarnation has the ready messages of its claims delivered again,
// until it has no claim left.
//
// # No wake-up is lost
//
// A publisher that finds a lane ready or held appends its call to the mailbox, waits for the
// acknowledgement, and then publishes an empty ready message. The holder releases a lane in three
// steps: it deletes the ready message and waits for the acknowledgement, it looks into the mailbox
// once more, and it deletes its claim. Suppose the stream refuses the publisher's ready message.
// Then the old one was still stored, so the publisher's append precedes the deletion, and the
// holder's last look finds the call. The holder then publishes a ready message itself. If the
// stream accepts the publisher's ready message, the lane is ready. Either way the call has a ready
// message. A holder that crashes between the steps leaves its claim, and the worker that expires
// its incarnation makes the lane ready.
//
// In a cluster, a leader that was cut off may still answer, without recent writes. So the holder
// stores a floor mark in the mailbox before the last look, and repeats the look until the answer
// includes the mark.
//
// A publisher may crash between its two writes. So the reaper of some worker tries to publish the
// ready message once for each mailbox entry. By the same argument once is enough. No caller needs
// to be alive.
//
// # Writes that are saved
//
// A call for an idle lane is the ready message itself: one write. A publisher that used the lane a
// moment ago, or waits for a result of it, skips this attempt, because holders keep frequently used
// lanes for a moment. The empty ready message after an append is not acknowledged; if it is lost,
// the reaper publishes one. While the publisher waits for the result of an earlier call of the lane
// it defers the ready message, because the holder looks into the mailbox after that call. It also
// defers it in a lane that the holder surely retains. It publishes the message when no call of the
// lane ends for a moment.
//
// A holder deletes settled entries without waiting for an ack, and checks before the release which
// are left. So after a crash a settled entry may still be stored; a holder therefore looks for a
// call's result before it starts the call. It does not if the caller had a result of this hold
// before it sent the call for the first time, as the call's header says: every copy of the call is
// then stored in this hold or a later one, and this hold knows which calls it has settled.
//
// While a lane is held, the server republishes each stored message of its mailbox to the holder. A
// single server does so completely and in order, so the holder need not read them from the stream.
// In a cluster some may be lost, so they only trigger a read.
//
// # Operators
//
// A paused lane has a pause mark in its mailbox. Its holder starts no call until the mark is
// deleted, and still answers calls that are cancelled or expire. Holders answer queries about their
// lanes on core NATS; package operator sends them, and reads the streams.
//
// # Attempts
//
// A first start needs no write. A holder whose claim says "interrupted" stores a numbered start
// mark before it starts a call that another holder may have started. A call that must not start
// twice always gets its mark before it starts. The stream accepts each mark once.
//
// # Where to look
//
//	decisions without I/O or clock             package core, and its simulation
//	streams and their operations               package store; whether a read is current: consistency
//	calls are admitted and published           admit, publisher
//	ready messages that are saved              readycache
//	what the engine needs of its program       host
//	a worker serves lanes, and drains          holder
//	tenants share slots; limits of lanes       tickets; slots
//	its heartbeat, and those of others         heartbeat
//	one held lane, in this order               claim, held, mailbox, attempt, release
//	pauses, cancels, deadlines, queries        control; package operator
//	calls that only other workers can run      attempt
//	calls that wait for others or for a time   later
//	lanes that no worker holds                 reaper
package lane
