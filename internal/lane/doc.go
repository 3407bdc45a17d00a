// Package lane is the engine that gives every resource its order: it puts calls into the mailboxes
// of lanes, lets one worker at a time hold a lane, runs the lane's calls in order, and stores one
// result for each.
//
//	          Publisher                     calls stream                       Holder
//	Put ──► ready.<lane> (the call itself) ─────────────► pull ──► claim: a record of its own
//	   │       refused: the lane is ready or held                    │ mailbox in sequence order
//	   └──► call.<lane>.<id> (mailbox) ───────────────────────────►  │ in-lane schedule
//	        ready.<lane> (empty; refused is fine)                    │ execute
//	                                                                 │ result stored, once
//	Results ◄── done.<session>.<id> ◄─── results stream ◄────────────┤ entry removed
//	                                                                 ▼
//	                  release: ready message removed, last look, claim removed
//
// # Who is authoritative
//
// The calls stream is the truth about what waits: the stream sequence is the order of a lane. The
// claims stream is the truth about who holds what: a claim is a record at the lane's own subject,
// stored on the condition that there is none, and its sequence is the epoch. The results stream is
// the truth about what ended: the first result wins, so there is exactly one. The pool's consumer
// only schedules: a delivery that is wrong or early costs a look at the claim. Everything on core
// NATS (hints, live frames) may be lost.
//
// # Claims and lives
//
//	            claim: none yet                        release
//	nobody ───────────────────────► held by an incarnation ───────────────► nobody
//	                                   │        │
//	     heartbeat stands still        │        │ drained with calls that were killed
//	     for a lease, is expired       ▼        ▼
//	                          claim of the dead, or of nobody
//	                                   │ replaced on the condition that it is still that one
//	                                   ▼
//	                          held by another incarnation, which knows that calls were interrupted
//
// A worker lives as long as it renews one heartbeat, by compare-and-set, for all its claims. It
// trusts them until four fifths of a lease after it sent the last renewal that was acknowledged.
// Others see the record stand still for a lease on their own clocks, and expire it on the condition
// that it has not changed: that proves that no later renewal was stored. So whoever replaces a
// claim does so after its owner has stopped, and no two clocks are compared. A incarnation that has
// lost its lease kills what runs, stores nothing, and never comes back; its worker begins another
// one.
//
// Whoever finds an expired incarnation has the lanes that it claimed delivered again, until none is
// left.
//
// # No wake-up is lost
//
// A publisher that finds the lane ready or held appends its call to the mailbox, waits for the
// acknowledgement, and then publishes an empty ready message. The holder releases by removing the
// ready message, waits until the removal is applied, and then looks into the mailbox once more. Say
// the publisher's ready message was refused. Then it reached the stream while the old one was still
// there, that is before the removal. The append was acknowledged before that. So the look, which
// comes after the removal, sees the entry, and the holder publishes a ready message itself. If it
// was not refused, it is there. Either way the lane is ready. Only then the claim goes: a holder
// that is lost in between leaves it, and whoever expires its incarnation makes the lane ready.
//
// On several servers a leader that was cut off may still answer, without what came since. So before
// the look a mark is stored in the mailbox, and the look counts only when it knows the mark.
//
// A publisher may be lost between the two. So the workers see to it that each entry is followed by
// one attempt to publish the ready message (reaper). One is enough for ever, by the same
// argument. Nobody who waits for a result has to do anything.
//
// # Writes that are left out
//
// A call that finds its lane idle is the ready message itself. A publisher that has used the lane a
// moment ago does not try that: holders keep lanes that are used again and again for a moment.
// Nobody answers the ready message behind an append; should it get lost, the reaper publishes
// one.
//
// A holder removes settled entries without asking for an answer. Before it lets the lane go, it
// finds out which are left. So after a crash an entry may be settled and still be
// there; the result of each call is looked for before it starts.
//
// While a lane is held, the server republishes each stored message of its mailbox to the holder. A
// server on its own does so in order, so they need not be read. In a cluster some may get lost, so
// they only say when to read.
//
// # Operators
//
// A paused lane has a mark in its mailbox; its holder starts nothing until the mark is gone, and
// still answers calls that are cancelled or expire. Holders answer questions about their lanes on
// core NATS; package operator asks them, and reads the streams.
//
// # Attempts
//
// A first start costs no write. Whoever holds a lane by a claim that says "interrupted" stores a
// numbered start mark before it starts a call that may have been started before. Calls that must
// not start twice have their mark stored before the first start. The stream takes each mark once.
//
// # Where to look
//
//	pure decisions, without I/O or clock       package core, and its simulation
//	calls are published                        publisher
//	what the engine needs of its program        host
//	the holder: one loop that pulls            holder, pull
//	claims and leases                          claim; a worker's heartbeat: incarnation; other workers': peers
//	a lane while it is held: one select loop   held; slots shared between lanes: fairness
//	one call: start, execution, result         attempt
//	waiting calls of a lane, in order          mailbox
//	calls that other workers have to run       place
//	lanes that no worker holds                 reaper
//	operators, cancels, pauses                 answer; package operator
//	streams and their operations               package store; whether an answer is current: consistency
package lane
