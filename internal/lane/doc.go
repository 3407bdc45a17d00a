// Package lane is the engine that gives every resource its order: it puts calls
// into the mailboxes of lanes, lets one worker at a time hold a lane, runs the
// lane's calls in order, and stores one result for each.
//
//	          Publisher                     calls stream                       Holder
//	Put ──► ready.<lane> (the call itself) ─────────────► pull ──► claim: the lease begins
//	   │       refused: the lane is ready or held                    │ mailbox in sequence order
//	   └──► call.<lane>.<id> (mailbox) ───────────────────────────►  │ in-lane schedule
//	        ready.<lane> (empty; refused is fine)                    │ execute, renew the lease
//	                                                                 │ result stored, once
//	Results ◄── done.<session>.<id> ◄─── results stream ◄────────────┤ entry removed
//	                                                                 ▼
//	                                           release: ready message removed, last look
//
// # Who is authoritative
//
// The calls stream is the truth about what waits: the stream sequence is the
// order of a lane, and holding the lane's one ready message is holding the lane.
// The results stream is the truth about what ended: a result is stored with "no
// message on this subject yet" as its condition, so the first one wins and there is
// exactly one. Everything on core NATS (hints, live frames) may be lost.
//
// # No wake-up is lost
//
// A publisher that finds the lane ready or held appends its call to the mailbox,
// waits for the acknowledgement, and then publishes an empty ready message. The
// holder releases by removing the ready message, waits until the removal is
// applied, and then looks into the mailbox once more. Say the publisher's ready
// message was refused. Then it reached the stream while the old ready message was
// still there, that is before the removal. The append was acknowledged before that.
// So the look, which comes after the removal, sees the entry, and the holder
// publishes a ready message itself. If it was not refused, it is there. Either way
// the lane is ready. A crash between two steps leaves either the ready message, which comes
// back when the lease ends, or a mailbox without one. For the latter, the workers of the pool
// publish a ready message behind each entry that waits longer than a moment (caretaker.go), and whoever
// waits for a result does so now and then (a kick, refused when all is well).
//
// # Writes that are left out
//
// A publisher that has an earlier unfinished call in the lane publishes no ready
// message: the holder looks into the mailbox after that call. One whose last call
// in a busy lane ended a moment ago appends right away, because holders keep such
// lanes for a moment. Both may be wrong when a result travels slowly, so the ready
// message is published after all when no result has come in 20 ms, or in twice the
// time that calls take, up to 100 ms.
//
// A holder removes settled entries without asking for an answer. Before it releases
// the lane, it has the mailbox listed once, or goes through what it has read where that is less, and removes
// what is left of them. So after
// a crash an entry may be settled and still be there; whoever takes over looks for its
// result first.
//
// While a lane is held, the server repeats each stored message of its mailbox to the
// holder. A server on its own repeats all of them in order, so they need not be read;
// and a call that is the ready message starts without a look into the mailbox, because
// it became the ready message only if the mailbox was empty. In a cluster some of what
// is repeated may get lost. One list of the mailbox then says for all of it what is
// still there, and what is missing (told.go). A lane whose calls run one by one, because
// each takes all of it, waits with that until the last call that it has in hand starts.
//
// # The lease
//
// The lease of a lane ends AckWait after the delivery or the last renewal. The holder
// trusts it for less: it counts from when the pull request or the renewal was sent,
// and keeps a margin. Pull requests live shorter than a lease, so that a message
// which was delivered to a sleeping process is recognised as too old. In a cluster a
// renewal counts only when it is certain that a majority of the servers has it
// (quorum.go). When the trusted time ends the holder kills what runs, stores nothing,
// and forgets the lane.
//
// # Old answers
//
// The servers of a cluster do not all know the same at the same time. The stream's
// leader may be behind what the consumer's leader has handed out, and a leader that was
// cut off or stood still goes on leading for a moment. So a holder takes stock first
// (stock.go): it believes a list of the mailbox only if the list knows the ready message
// or, in a lane that is delivered again, a mark that was stored at the claim. What is not
// in the list is not run, and nothing overtakes what is in it. When a server was silent a
// moment ago (contact.go), every claim stores such a mark, so that no cancel or pause is
// missed either.
//
// # Operators
//
// A paused lane has a mark in its mailbox; its holder starts nothing until the
// mark is gone, and still answers calls that are cancelled or expire. Holders
// answer questions about their lanes on core NATS; package operator asks them, and
// reads the streams.
//
// # Large bodies
//
// A payload or a value that no message can carry is kept in the object store, and
// the message says where ([protocol.Stored]). The rest of a call, its resources
// above all, stays in its message: the schedule needs no more.
//
// # Attempts
//
// A first start costs no write. Whoever claims a lane that another worker may have left
// in the middle stores a numbered start mark before it starts a call that may have been
// started before. Calls that must not start twice have their mark stored before the first
// start. The stream takes each mark once, so a mark also decides between two workers that
// both believe that they hold the lane.
//
// # Where to look
//
//	calls are put, results heard    publisher, presence, recover, back; results
//	lanes that nobody waits for     caretaker
//	lanes are claimed               holder, pull, slots, turns, crowd; options, executor
//	a lane while it is held         held, waits, attempt, leave, litter
//	what waits in it, in order      feed, mailbox, told, stock; schedule, which is pure
//	its lease                       lease, renew, consumer, quorum, contact, books, rivals
//	calls whose time is over        due in a held lane, overdue in others
//	operators, cancels, pauses      answer, oversight, paused, alarms; package operator
//	streams and their operations    package store
package lane
