// Package loop runs agent sessions: it asks a model, has the tools run that the model asks for,
// shows it the results, and asks again until it answers.
//
// A session is a durable conversation. A turn is one input and everything up to the answer; a step
// is one reply of the model and the tool calls in it. The loop keeps no state of its own: what it
// knows is the fold of the session's journal, and every event is journaled before anything follows
// from it. So a turn has one shape whether it runs through or is resumed by another process:
//
//	            ┌──────────────── all results known ────────────────┐
//	            ▼                                                   │
//	Run ──► what is next? ── model's turn ──► ask ──► model_reply ──┤
//	 │       │    │    │                                            │
//	 │       │    │    └── calls without result ──► tool_call ──► dispatch
//	 │       │    │                                                 │
//	 │       │    └── no calls in the last reply                    └─► tool_result, each at once
//	 │       │         turn_ended: answered
//	 │       └── limit, end of ctx, model error
//	 │            turn_ended: limit_reached, interrupted, failed
//	 └── fleet or journal lost: a Go error; the turn stays open, and the next Run goes on there
//
// # Who is authoritative
//
// The [Journal] is, for the conversation: an append names the sequence that it builds on, so two
// processes can never both extend a session; the slower one gets [ErrJournalConflict] and leaves
// without cancelling anything. The fleet is, for results: ids of calls derive from session, turn,
// step and place, so a resumed turn dispatches the calls without result again under the ids that
// they had, and the [Dispatcher] tells the results that the fleet has or will have. They derive
// from the seed in the journal, too, so that who stores results cannot foretell them. Plans are
// pure, so the same tools make the same calls of them; a session should be resumed with the tools
// that it had. A call that was sent, and that the tools of now would send elsewhere or not at all,
// is outcome_unknown.
//
// # Calls of a reply that streams
//
// A call that is complete in a reply that still streams ([Delta].Call) is sent at once, if a policy
// asks no one and all calls before it in the reply were sent. Its tool_call is journaled first. A
// reply that breaks off is journaled with the calls that were sent, by this run or the next one.
//
// # Jobs
//
// A call whose plan says Background is a job. Its tool call has a result at once, the handle; the
// call is dispatched beside the steps, by a goroutine that ends with the run and leaves the call to
// itself. job_ended is journaled once for each job: between two steps, where it also is a message
// to the model, or with the job_wait or job_cancel that answered it. The run of the next turn
// follows the jobs without an end under the same ids.
//
// # Sub-agents
//
// The tool agent is answered by the loop as well: it runs another session inside the turn,
// under all that binds the turn. Its id is that of the tool call, so a resumed turn finds it; see
// [Agent].
//
// # Stateful tools
//
// A tool result may name a handle. A tool call that goes on with it becomes a call with the
// resources of the one that opened it, which is planned once more for that; the worker that has the
// state is the one that holds their lane. Which handles there are, and which have ended, is what
// the journal's results say. See [tools.NewStateful].
//
// # What happens on failure
//
// Nothing that a model does wrong ends a turn. Arguments that are no JSON or do not fit the schema,
// a tool that does not exist, one that fails or panics: each becomes the result of that one tool
// call, written for the model to act on. The model sees exactly one result per tool call, in the
// order of the calls, in whatever order they came.
//
// A model that cannot be asked ends the turn as failed, and so does one whose reply is empty
// twice. One whose reply was cut at a limit of output tokens is told so and asked again; cut once
// more, the turn ends as limit_reached. One that says that the conversation is too long
// ([ErrTooLong]) is asked again with less of the tool calls that are long ago. One whose server
// refuses an image, or another part of a tool call ([RefusedError]), is asked again without that
// part. Limits are looked at before the model is asked again, never between a tool call and its
// result. When ctx ends, running calls are cancelled, what can be learned is journaled, the rest
// is outcome_unknown, and the turn ends as interrupted.
//
// A Go error from [Runner.Run] means that the fleet or the journal failed. Then no result is made
// up and no end is journaled: the turn is open, and the next Run of the session goes on exactly
// there.
package loop
