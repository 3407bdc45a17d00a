// Package loop runs agent sessions: it asks a model, has the tools run that the model asks for,
// shows it the results, and asks again until it answers.
//
// A session is a durable conversation. A turn is one input and everything up to the answer; a step
// is one reply of the model and the tool calls in it. The loop has no state but the fold of the
// session's journal, and journals every event before it acts on it. So a turn is the same whether
// one process runs it or another resumes it:
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
//	 └── fleet or journal lost: a Go error; the turn stays open, and the next Run continues there
//
// # Who is authoritative
//
// The [Journal], for the conversation: an append names the sequence that it builds on, so two
// processes can never both extend a session; the slower one gets [ErrJournalConflict] and leaves
// without cancelling anything. The fleet, for results: ids of calls derive from session, turn, step
// and index, so a resumed turn dispatches calls without a result again under the same ids, and the
// [Dispatcher] returns the results that the fleet has or will have. Ids also derive from the seed
// in the journal, so that workers cannot guess them. Plans are pure: the same tools make the same
// calls, so resume a session with the tools that it had. A sent call that the current tools would
// send elsewhere, or not at all, is followed as the fleet has it, and outcome_unknown if the fleet
// does not have it.
//
// # Calls of a reply that streams
//
// A call that is complete in a reply that still streams ([Delta].Call) is sent at once, if a policy
// asks no one and all calls before it in the reply were sent. Its tool_call is journaled first. A
// reply that breaks off is journaled with the calls that were sent, by this run or the next one.
//
// # Jobs
//
// A call whose plan says Background is a job. Its tool call has a result at once, the handle. A
// goroutine dispatches the call concurrently with the steps, and ends with the run; the call
// continues. job_ended is journaled once for each job: between two steps, where it also is a
// message to the model, or with the job_wait or job_cancel that answered it. The run of the next
// turn follows unfinished jobs under the same ids.
//
// # Sub-agents
//
// The loop answers the tool agent, too: it runs another session inside the turn, under the turn's
// policies and limits. Its id is that of the tool call, so a resumed turn finds it; see [Agent].
//
// # Stateful tools
//
// A tool result may name a handle. A tool call that continues it becomes a call with the resources
// of the opening call, which is planned again for that; the worker with the state holds their lane.
// The journal's results say which handles there are, and which have ended. See [tools.NewStateful].
//
// # What happens on failure
//
// Nothing that a model does wrong ends a turn. Arguments that are no JSON or do not fit the schema,
// a tool that does not exist, one that fails or panics: each becomes the result of that one tool
// call, written for the model to act on. The model sees exactly one result per tool call, in the
// order of the calls, in whatever order they came.
//
// A model that cannot be asked ends the turn as failed, and so does one whose reply is empty twice.
// A model whose reply was cut at a limit of output tokens gets a note and is asked again; cut once
// more, the turn ends as limit_reached. One that says that the conversation is too long
// ([ErrTooLong]) is asked again with less of the tool calls that are long ago. One whose server
// refuses an image, or another part of a tool call ([RefusedError]), is asked again without that
// part. Limits are looked at before the model is asked again, never between a tool call and its
// result. When ctx ends, running calls are cancelled, what can be learned is journaled, the rest is
// outcome_unknown, and the turn ends as interrupted.
//
// A Go error from [Runner.Run] means that the fleet or the journal failed. Then no result is made
// up and no end is journaled: the turn is open, and the next Run of the session continues exactly
// there.
package loop
